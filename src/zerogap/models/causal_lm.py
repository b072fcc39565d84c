"""The one model definition: packed token ids in, hidden states out, for engine and trainer alike.

There is no batch dimension: T tokens of any number of sequences are packed into one row dimension, each with its
position, and only the ``Attention`` knows which rows belong together. Every other operation is a batch-invariant
kernel, so a token's hidden state does not depend on the other rows.

With precision "bf16" parameters hold bf16 values (in fp32 tensors) and every operation rounds its result to bf16, up
to the last norm; ``docs/numerics.md`` has the details.

The family (``families``) decides what a layer consists of; this file is the same for all families.

Letters: T packed tokens, D model dim, h half of a head's dim, V vocabulary.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zerogap import kernels
from zerogap.errors import ModelError
from zerogap.kernels import PLAIN, Compute, Head
from zerogap.models.attention import Attention
from zerogap.models.choices import NO_CHOICES, Choices
from zerogap.models.config import ModelConfig
from zerogap.models.families import find_family
from zerogap.models.part import Block, ForwardRows, Weights
from zerogap.models.rope import inverse_frequencies

Precision = Literal["fp32", "bf16"]
"""Of parameters and activations; within an operation everything is fp32."""


class CausalLM(nn.Module):
    """A decoder of any family.

    Parameters hold NaN until ``init_weights`` or a loader fills them, so a forgotten load shows at once. To freeze a
    parameter: ``model.get_parameter(name).requires_grad_(False)``.
    """

    inv_freq_h: torch.Tensor
    precision: Precision

    def __init__(self, config: ModelConfig, *, precision: Precision = "fp32") -> None:
        super().__init__()
        if precision not in ("fp32", "bf16"):
            msg = f"precision = {precision!r} is not supported; use 'fp32' or 'bf16'"
            raise ModelError(msg)
        self.config, self.precision = config, precision
        self._vocab_limit = config.vocab_size
        shape_VD = (config.vocab_size, config.hidden_size)
        family = find_family(config.family)
        self.embed_tokens = Weights(shape_VD)
        blocks = [Block(family.layer(config, i)) for i in range(config.num_layers)]
        self.layers = nn.ModuleList(blocks)
        self._parts = [part for block in blocks for part in block.parts]
        self.choice_columns = {n: c for part in self._parts for n, c in part.choices.items()}
        """What the parts choose for each row; empty for a dense model."""
        self.norm = Weights((config.hidden_size,))
        if not config.tie_word_embeddings:
            self.lm_head = Weights(shape_VD)
        inv_freq_h = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("inv_freq_h", inv_freq_h, persistent=False)

    @property
    def is_bf16(self) -> bool:
        """Whether parameters and activations are bf16 values."""
        return self.precision == "bf16"

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return self.embed_tokens.weight.device

    @property
    def head(self) -> Head:
        """The head weight and the vocabulary limit: what turns hidden states into logits."""
        return Head(self.head_weight, self._vocab_limit)

    def limit_vocabulary(self, vocab_limit: int) -> None:
        """Leave out ids from ``vocab_limit`` on: a padded head has more rows than the tokenizer has ids.

        Raises:
            KernelError: the head has fewer rows than the limit.
        """
        self._vocab_limit = Head(self.head_weight, vocab_limit).vocab_limit

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
        choices: Choices | None = None,
        compute: Compute = PLAIN,
        recompute: bool = False,
    ) -> torch.Tensor:
        """Hidden states after the final norm.

        Args:
            token_ids_T: int64 in [0, V).
            positions_T: int64, each token's place in its own sequence, from 0.
            attention: decides which rows each row attends to.
            choices: those of these rows: made ones are repeated, empty ones are filled (``new_choices``). None: the
                pass makes its own and discards them.
            compute: how the kernels compute; its precision is replaced by the model's.
            recompute: keep only each layer's input for the backward pass and compute the rest again there
                (activation checkpointing). Gradients have the same bits; it needs less memory and takes a third longer.

        Returns:
            [T, D]
        """
        if choices is None:
            choices = self.new_choices(len(token_ids_T))
        else:
            choices.check(
                self.choice_columns, num_rows=len(token_ids_T), num_layers=self.config.num_layers
            )
        cos_Th, sin_Th = kernels.rope_tables(self.inv_freq_h, positions_T)
        compute = replace(compute, rounds_bf16=self.is_bf16)
        rows = ForwardRows(cos_Th, sin_Th, attention, choices, compute)
        x_TD = kernels.embedding(token_ids_T, self.embed_tokens.weight, compute=compute)
        for layer in self.layers:
            if recompute:
                # The model draws no random numbers, so none need to be restored.
                x_TD = checkpoint(layer, x_TD, rows, use_reentrant=False, preserve_rng_state=False)
            else:
                x_TD = layer(x_TD, rows)
        eps = self.config.rms_norm_eps
        return kernels.rms_norm(x_TD, self.norm.weight, eps, compute=compute)

    def new_choices(self, num_rows: int) -> Choices:
        """Empty choices of ``num_rows`` rows, for a pass to fill."""
        if not self.choice_columns:
            return NO_CHOICES
        return Choices.empty(
            self.choice_columns,
            num_rows=num_rows,
            num_layers=self.config.num_layers,
            device=self.device,
        )

    def gemm_shapes(self) -> set[tuple[int, int]]:
        """(in, out) of every GEMM of a forward pass, each shape once; the head multiplies the vocabulary in chunks."""
        limit = self._vocab_limit
        chunks = {min(kernels.VOCAB_CHUNK, limit), limit % kernels.VOCAB_CHUNK}
        head = {(self.config.hidden_size, size) for size in chunks if size}
        return head.union(*(part.gemm_shapes() for part in self._parts))

    @torch.no_grad()
    def init_weights(self, *, seed: int) -> "CausalLM":
        """Initialise weights as Hugging Face does: normal matrices, zero biases, unit norms. Returns self.

        The same seed gives the same weights, whatever the global random state.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
            elif parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02, generator=generator)
        return self.round_weights_()

    @torch.no_grad()
    def copied(self, *, precision: Precision) -> "CausalLM":
        """An independent copy of the model, its weights rounded to ``precision``."""
        copy = CausalLM(self.config, precision=precision)
        copy.limit_vocabulary(self._vocab_limit)
        copy.load_state_dict(self.state_dict())
        return copy.round_weights_()

    @torch.no_grad()
    def round_weights_(self) -> "CausalLM":
        """Round every parameter to the model's precision; call it after writing parameters. Returns self."""
        if self.is_bf16:
            for parameter in self.parameters():
                kernels.round_bf16_(parameter)
        return self
