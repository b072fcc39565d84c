"""The parts that layers consist of.

Each part normalises its input, computes, and adds the result to the residual stream. Checkpoint tensors have the names
that most Hugging Face decoders use.

Letters: T packed tokens, D model dim, N query heads, K key/value heads, H head dim, F MLP dim.
"""

from torch import Tensor

from zerogap import kernels
from zerogap.models.config import ModelConfig
from zerogap.models.part import Block, ForwardRows, Part, WeightSpec


def dense_layer(
    config: ModelConfig, index: int, *, has_qkv_bias: bool = False, has_head_norms: bool = False
) -> tuple[Part, ...]:
    """The parts of layer ``index`` of a dense decoder; arguments as in ``SelfAttention``."""
    attention = SelfAttention(
        config, index, has_qkv_bias=has_qkv_bias, has_head_norms=has_head_norms
    )
    return attention, SwigluMlp(config)


class SelfAttention(Part):
    """Causal attention over the whole sequence with rotary positions, query heads in groups (GQA)."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        *,
        has_qkv_bias: bool = False,
        has_head_norms: bool = False,
    ) -> None:
        """The attention of layer ``index``.

        Args:
            config: sizes.
            index: of the layer, from 0; passed to ``Attention``.
            has_qkv_bias: whether query, key and value projections add a bias.
            has_head_norms: whether each query and key head is RMS-normalised before rope.
        """
        self._index, self._eps = index, config.rms_norm_eps
        self._num_heads, self._num_kv_heads = config.num_heads, config.num_kv_heads
        self._has_head_norms = has_head_norms
        hidden, head = config.hidden_size, config.head_dim
        queries, keys = config.num_heads * head, config.num_kv_heads * head
        qkv = {"self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys}
        norms = ("q_norm", "k_norm") if has_head_norms else ()
        self.weights = {
            "input_norm": WeightSpec({"input_layernorm": hidden}),
            "qkv": WeightSpec(qkv, columns=hidden, has_bias=has_qkv_bias),
            **{name: WeightSpec({f"self_attn.{name}": head}) for name in norms},
            "o": WeightSpec({"self_attn.o_proj": hidden}, columns=queries),
        }

    def __call__(self, layer: Block, x_TD: Tensor, rows: ForwardRows) -> Tensor:
        """``x + attention(norm(x))``."""
        qkv = layer["qkv"]
        q_TNH, k_TKH, v_TKH = kernels.qkv_rope(
            kernels.norm_linear(
                x_TD,
                layer["input_norm"].weight,
                qkv.weight,
                qkv.bias,
                eps=self._eps,
                compute=rows.compute,
            ),
            rows.cos_Th,
            rows.sin_Th,
            layer["q_norm"].weight if self._has_head_norms else None,
            layer["k_norm"].weight if self._has_head_norms else None,
            num_heads=self._num_heads,
            num_kv_heads=self._num_kv_heads,
            eps=self._eps,
            compute=rows.compute,
        )
        out_TNH = rows.attention(self._index, q_TNH, k_TKH, v_TKH)
        # Every Attention returns fp32; this GEMM rounds its input to the precision of the pass.
        return kernels.linear(
            out_TNH.flatten(1), layer["o"].weight, residual_TO=x_TD, compute=rows.compute
        )


class SwigluMlp(Part):
    """``down(silu(gate(x)) * up(x))``, without biases."""

    def __init__(self, config: ModelConfig) -> None:
        self._eps = config.rms_norm_eps
        hidden, ffn = config.hidden_size, config.intermediate_size
        gate_up = {"mlp.gate_proj": ffn, "mlp.up_proj": ffn}
        self.weights = {
            "post_norm": WeightSpec({"post_attention_layernorm": hidden}),
            "gate_up": WeightSpec(gate_up, columns=hidden),
            "down": WeightSpec({"mlp.down_proj": hidden}, columns=ffn),
        }

    def __call__(self, layer: Block, x_TD: Tensor, rows: ForwardRows) -> Tensor:
        """``x + mlp(norm(x))``."""
        gate_up_TF2 = kernels.norm_linear(
            x_TD,
            layer["post_norm"].weight,
            layer["gate_up"].weight,
            eps=self._eps,
            compute=rows.compute,
        )
        return kernels.swiglu_linear(
            gate_up_TF2, layer["down"].weight, residual_TO=x_TD, compute=rows.compute
        )
