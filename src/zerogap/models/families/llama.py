"""Llama 2 and 3, SmolLM2 and relatives; the base of the other families."""

import gguf

from zerogap.models.blocks import dense_layer
from zerogap.models.family import Family, GgufFormat
from zerogap.models.hf_limits import DENSE, NO_ATTENTION_BIAS, plain_values

LLAMA = Family(
    name="llama",
    hf_class="LlamaForCausalLM",
    layer=dense_layer,
    hf_constants={"hidden_act": "silu"},
    hf_limits=(plain_values(NO_ATTENTION_BIAS), *DENSE),
    gguf=GgufFormat(
        architecture=gguf.MODEL_ARCH.LLAMA,
        paired=("self_attn.q_proj", "self_attn.k_proj"),
    ),
)
