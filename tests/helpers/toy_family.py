"""A family that the package does not know: biases and head norms together, and one of three experts instead of the MLP.

As a user would add one: config mapping, blocks and names in one file. The fixture ``toy_family`` puts it in the dict.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zerogap import kernels
from zerogap.models import ChoiceColumn, ModelConfig
from zerogap.models.blocks import SelfAttention
from zerogap.models.families.llama import LLAMA
from zerogap.models.part import Block, ForwardRows, Part, WeightSpec


@dataclass(frozen=True, kw_only=True)
class ToyConfig(ModelConfig):
    num_experts: int = 3


class ToyExperts(Part):
    """The expert with the largest logit, times that logit; each is a SwiGLU."""

    def __init__(self, config: ToyConfig, index: int) -> None:
        self._index, self._eps = index, config.rms_norm_eps
        hidden, ffn, experts = config.hidden_size, config.intermediate_size, range(config.num_experts)  # fmt: skip
        self._gemms = {(hidden, len(experts)), (hidden, 2 * ffn), (ffn, hidden)}
        self.weights = {
            "moe_norm": WeightSpec({"moe.norm": hidden}),
            "router": WeightSpec({"moe.router": len(experts)}, columns=hidden),
            "gate_up": WeightSpec({f"moe.{e}.{n}": ffn for e in experts for n in ("w1", "w3")}, columns=hidden),
            "down": WeightSpec({f"moe.{e}.w2": hidden for e in experts}, columns=ffn),
        }  # fmt: skip
        self.choices = {"expert": ChoiceColumn(torch.int64)}

    def gemm_shapes(self) -> Iterator[tuple[int, int]]:
        yield from self._gemms

    def __call__(self, layer: Block, x_TD: Tensor, rows: ForwardRows) -> Tensor:
        normed_TD = kernels.rms_norm(x_TD, layer["moe_norm"].weight, self._eps, compute=rows.compute)  # fmt: skip
        logits_TE = kernels.linear(normed_TD, layer["router"].weight, compute=rows.compute)
        chosen_T = rows.choices.settle(
            "expert", self._index, lambda out_T: out_T.copy_(logits_TE.argmax(1))
        )
        gate_up, down = (layer[name].weight.chunk(logits_TE.shape[1]) for name in ("gate_up", "down"))  # fmt: skip
        out_TD = torch.zeros_like(x_TD)
        for e in range(logits_TE.shape[1]):
            gate_up_TF2 = kernels.linear(normed_TD, gate_up[e], compute=rows.compute)
            expert_TD = kernels.swiglu_linear(gate_up_TF2, down[e], compute=rows.compute)
            out_TD = torch.where((chosen_T == e)[:, None], expert_TD, out_TD)
        return x_TD + out_TD * logits_TE.gather(1, chosen_T[:, None])


TOY = replace(
    LLAMA,
    name="toy",
    hf_class="ToyForCausalLM",
    layer=lambda c, i: (SelfAttention(c, i, has_qkv_bias=True, has_head_norms=True), ToyExperts(c, i)),
    config_class=ToyConfig,
    hf_keys=LLAMA.hf_keys | {"num_experts": "num_local_experts"},
    gguf=None,
)  # fmt: skip
