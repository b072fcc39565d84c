"""Qwen3: Llama with an RMS norm on each query and key head."""

from dataclasses import replace

import gguf

from zerogap.models.blocks import SelfAttention, SwigluMlp
from zerogap.models.config import ModelConfig
from zerogap.models.families.llama import LLAMA
from zerogap.models.family import GgufFormat
from zerogap.models.part import Part


def _layer(config: ModelConfig, index: int) -> tuple[Part, ...]:
    return SelfAttention(config, index, has_head_norms=True), SwigluMlp(config)


QWEN3 = replace(
    LLAMA,
    name="qwen3",
    hf_class="Qwen3ForCausalLM",
    layer=_layer,
    hf_head_dim=128,
    gguf=GgufFormat(architecture=gguf.MODEL_ARCH.QWEN3),
)
