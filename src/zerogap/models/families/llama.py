"""Llama 2 and 3, SmolLM2 and relatives; the base of the other families."""

import gguf

from zerogap.models.blocks import SelfAttention, SwigluMlp
from zerogap.models.config import ModelConfig
from zerogap.models.family import Family, GgufFormat
from zerogap.models.hf_limits import DENSE, NO_ATTENTION_BIAS, plain_values
from zerogap.models.part import Part


def _layer(config: ModelConfig, index: int) -> tuple[Part, ...]:
    return SelfAttention(config, index), SwigluMlp(config)


LLAMA = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    layer=_layer,
    hf_constants={"hidden_act": "silu"},
    hf_limits=(plain_values(NO_ATTENTION_BIAS), *DENSE),
    gguf=GgufFormat(
        architecture=gguf.MODEL_ARCH.LLAMA,
        paired=("self_attn.q_proj", "self_attn.k_proj"),
    ),
)
