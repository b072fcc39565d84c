"""Qwen3: Llama with an RMS norm on each query and key head."""

from dataclasses import replace
from functools import partial

import gguf

from zerogap.models.blocks import dense_layer
from zerogap.models.families.llama import LLAMA
from zerogap.models.family import GgufFormat

QWEN3 = replace(
    LLAMA,
    name="qwen3",
    hf_class="Qwen3ForCausalLM",
    layer=partial(dense_layer, has_head_norms=True),
    hf_head_dim=128,
    gguf=GgufFormat(architecture=gguf.MODEL_ARCH.QWEN3),
)
