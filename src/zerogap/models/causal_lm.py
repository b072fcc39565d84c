"""The one model definition: packed token ids in, hidden states out, for engine and trainer alike.

There is no batch dimension: T tokens of any number of sequences stand in one row dimension, with their
positions beside them, and only the ``Attention`` knows which rows belong together. Every other operation
is a row-invariant kernel, so a token's hidden state does not depend on its company.

With precision "bf16" parameters hold bf16 values (in fp32 tensors) and every operation rounds what it returns to
bf16, up to the last norm; what a row is then exactly says ``docs/numerics.md``.

Query, key and value projections are one parameter, gate and up projections another: one larger matrix
product instead of three and two. ``names.py`` maps them to Hugging Face's tensors.

Letters: T packed tokens, D model dim, N query heads, K key/value heads, H head dim, h = H / 2,
F MLP dim, V vocabulary, I and O in and out of a projection.
"""

import math
from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zerogap import kernels
from zerogap.errors import ModelError
from zerogap.models.attention import Attention
from zerogap.models.config import ModelConfig
from zerogap.models.rope import inverse_frequencies

Precision = Literal["fp32", "bf16"]
"""Of parameters and of what passes between operations; within an operation all is fp32."""


class CausalLM(nn.Module):
    """A dense decoder of the Llama, Qwen2 or Qwen3 family.

    Parameters hold NaN until ``init_weights`` or a loader fills them, so that a forgotten load is loud.
    """

    inv_freq_h: torch.Tensor
    precision: Precision

    def __init__(self, config: ModelConfig, *, precision: Precision = "fp32") -> None:
        super().__init__()
        if precision not in ("fp32", "bf16"):
            msg = (
                f"precision = {precision!r} is none that a model computes in; use 'fp32' or 'bf16'"
            )
            raise ModelError(msg)
        self.config, self.precision = config, precision
        shape_VD = (config.vocab_size, config.hidden_size)
        self.embed_tokens = _Weights(shape_VD)
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, is_bf16=self.is_bf16) for i in range(config.num_layers)
        )
        self.norm = _Weights((config.hidden_size,))
        if not config.tie_word_embeddings:
            self.lm_head = _Weights(shape_VD)
        inv_freq_h = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("inv_freq_h", inv_freq_h, persistent=False)

    @property
    def is_bf16(self) -> bool:
        """Whether parameters and activations are bf16 values."""
        return self.precision == "bf16"

    @property
    def head_weight(self) -> nn.Parameter:
        """[V, D]: logits are hidden @ head_weight.T. The embedding itself when tied."""
        is_tied = self.config.tie_word_embeddings
        return self.embed_tokens.weight if is_tied else self.lm_head.weight

    def forward(
        self,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        attention: Attention,
        *,
        recompute: bool = False,
    ) -> torch.Tensor:
        """Hidden states after the final norm.

        Args:
            token_ids_T: int64 in [0, V).
            positions_T: int64, each token's place in its own sequence, from 0.
            attention: who sees what.
            recompute: keep only each layer's input for the backward pass and compute the rest again
                there. Gradients are the same bits; memory falls, the backward pass takes a third longer.

        Returns:
            [T, D]
        """
        cos_Th, sin_Th = kernels.rope_tables(self.inv_freq_h, positions_T)
        x_TD = kernels.embedding(token_ids_T, self.embed_tokens.weight)
        for layer in self.layers:
            if recompute:
                # The model draws no random numbers, so none need to be restored.
                x_TD = checkpoint(
                    layer, x_TD, cos_Th, sin_Th, attention,
                    use_reentrant=False, preserve_rng_state=False,
                )  # fmt: skip
            else:
                x_TD = layer(x_TD, cos_Th, sin_Th, attention)
        eps = self.config.rms_norm_eps
        return kernels.rms_norm(x_TD, self.norm.weight, eps, is_bf16=self.is_bf16)

    @torch.no_grad()
    def init_weights(self, *, seed: int, std: float = 0.02) -> "CausalLM":
        """Fill with fresh weights: normal matrices, zero biases, unit norms (as Hugging Face does).

        The same seed gives the same weights whatever the global random state; returns self.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, std, generator=generator)
        return self.round_weights_()

    @torch.no_grad()
    def copied(self, *, precision: Precision) -> "CausalLM":
        """A model of its own with these weights as they are now, rounded to ``precision``."""
        copy = CausalLM(self.config, precision=precision)
        copy.load_state_dict(self.state_dict())
        return copy.round_weights_()

    @torch.no_grad()
    def round_weights_(self) -> "CausalLM":
        """Every parameter to the nearest value of the model's precision; for who fills them from elsewhere."""
        if self.is_bf16:
            for parameter in self.parameters():
                kernels.round_bf16_(parameter)
        return self


class DecoderLayer(nn.Module):
    """Attention and MLP, each added to the residual stream after its own norm."""

    def __init__(self, config: ModelConfig, index: int, *, is_bf16: bool) -> None:
        super().__init__()
        self.config, self.is_bf16 = config, is_bf16
        self.index = index
        hidden, head = config.hidden_size, config.head_dim
        qkv_size = (config.num_heads + 2 * config.num_kv_heads) * head
        self.input_norm = _Weights((hidden,))
        self.qkv = _Weights((qkv_size, hidden), has_bias=config.qkv_bias)
        if config.qk_norm:
            self.q_norm = _Weights((head,))
            self.k_norm = _Weights((head,))
        self.o = _Weights((hidden, config.num_heads * head))
        self.post_norm = _Weights((hidden,))
        self.gate_up = _Weights((2 * config.intermediate_size, hidden))
        self.down = _Weights((hidden, config.intermediate_size))

    def forward(
        self,
        x_TD: torch.Tensor,
        cos_Th: torch.Tensor,
        sin_Th: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        """The residual stream after this layer, [T, D]."""
        eps = self.config.rms_norm_eps
        x_TD = self._attend(x_TD, cos_Th, sin_Th, attention)
        gate_up_TF2 = kernels.norm_linear(
            x_TD, self.post_norm.weight, self.gate_up.weight, eps=eps, is_bf16=self.is_bf16
        )
        return kernels.swiglu_linear(
            gate_up_TF2, self.down.weight, residual_TO=x_TD, is_bf16=self.is_bf16
        )

    def _attend(
        self,
        x_TD: torch.Tensor,
        cos_Th: torch.Tensor,
        sin_Th: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        config = self.config
        q_TNH, k_TKH, v_TKH = kernels.qkv_rope(
            kernels.norm_linear(
                x_TD,
                self.input_norm.weight,
                self.qkv.weight,
                self.qkv.bias,
                eps=config.rms_norm_eps,
                is_bf16=self.is_bf16,
            ),
            cos_Th,
            sin_Th,
            self.q_norm.weight if config.qk_norm else None,
            self.k_norm.weight if config.qk_norm else None,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            eps=config.rms_norm_eps,
            is_bf16=self.is_bf16,
        )
        out_TNH = attention(self.index, q_TNH, k_TKH, v_TKH)
        # Attention itself returns fp32, whoever computes it; the product rounds what it is given.
        return kernels.linear(
            out_TNH.flatten(1), self.o.weight, residual_TO=x_TD, is_bf16=self.is_bf16
        )


class _Weights(nn.Module):
    """The parameters of one operation; which operation, the layer's forward says."""

    bias: nn.Parameter | None

    def __init__(self, shape: tuple[int, ...], *, has_bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full(shape, math.nan))
        self.register_parameter(
            "bias", nn.Parameter(torch.full(shape[:1], math.nan)) if has_bias else None
        )
