"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values."""

from dataclasses import replace

import gguf

from zerogap.models.blocks import SelfAttention, SwigluMlp
from zerogap.models.config import ModelConfig
from zerogap.models.families.llama import LLAMA
from zerogap.models.family import GgufFormat
from zerogap.models.hf_limits import DENSE
from zerogap.models.part import Part


def _layer(config: ModelConfig, index: int) -> tuple[Part, ...]:
    return SelfAttention(config, index, has_qkv_bias=True), SwigluMlp(config)


QWEN2 = replace(
    LLAMA,
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    layer=_layer,
    # There is no attention_bias switch: q, k and v always have a bias, the output projection never.
    hf_limits=DENSE,
    gguf=GgufFormat(architecture=gguf.MODEL_ARCH.QWEN2),
)
