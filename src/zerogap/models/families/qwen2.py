"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values."""

from dataclasses import replace
from functools import partial

import gguf

from zerogap.models.blocks import dense_layer
from zerogap.models.families.llama import LLAMA
from zerogap.models.family import GgufFormat
from zerogap.models.hf_limits import DENSE

QWEN2 = replace(
    LLAMA,
    name="qwen2",
    hf_class="Qwen2ForCausalLM",
    layer=partial(dense_layer, has_qkv_bias=True),
    # There is no attention_bias switch: q, k and v always have a bias, the output projection never.
    hf_limits=DENSE,
    gguf=GgufFormat(architecture=gguf.MODEL_ARCH.QWEN2),
)
