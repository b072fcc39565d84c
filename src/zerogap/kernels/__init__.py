"""Tensor functions that engine and trainer share: a torch reference and a C++ path for CPU.

Every function is row-invariant: a row's bits depend on that row (and, for attention, on its own keys)
and never on what is computed beside it. That is what makes the trainer's log-prob of a token equal to
the engine's. ``kernel_report()`` says which path runs and why. A forward pass made of these functions
can be recorded and made again without the Python between them (``record``).
"""

from zerogap.kernels.attention import packed_attention, paged_attention, write_kv
from zerogap.kernels.constants import PAGE_SIZE, ROW_MULTIPLE, VOCAB_CHUNK
from zerogap.kernels.fused import norm_linear, swiglu_linear
from zerogap.kernels.gradients import embedding, gradients_in_place
from zerogap.kernels.head import log_probs
from zerogap.kernels.head_top_k import log_probs_of, top_k_log_probs
from zerogap.kernels.layout import AttentionPlan, PackedLayout, build_packed_layout
from zerogap.kernels.linear import linear, product_choice
from zerogap.kernels.noise import position_uniform
from zerogap.kernels.probe import (
    RowProbe,
    ensure_row_invariance,
    kernel_report,
    probe_row_invariance,
)
from zerogap.kernels.products import Products, chosen_products, products
from zerogap.kernels.program import Arena, NotRecordable, Program, record
from zerogap.kernels.rounding import round_bf16, round_bf16_
from zerogap.kernels.rowwise import qkv_rope, rms_norm, rope_tables, swiglu
from zerogap.kernels.sampling import LogitsBuffer, sample_tokens
from zerogap.kernels.sampling_rows import SamplingRows
from zerogap.kernels.speed import FastProducts, ProductTimes, time_products

__all__ = [
    "PAGE_SIZE",
    "ROW_MULTIPLE",
    "VOCAB_CHUNK",
    "Arena",
    "AttentionPlan",
    "FastProducts",
    "LogitsBuffer",
    "NotRecordable",
    "PackedLayout",
    "ProductTimes",
    "Products",
    "Program",
    "RowProbe",
    "SamplingRows",
    "build_packed_layout",
    "chosen_products",
    "embedding",
    "ensure_row_invariance",
    "gradients_in_place",
    "kernel_report",
    "linear",
    "log_probs",
    "log_probs_of",
    "norm_linear",
    "packed_attention",
    "paged_attention",
    "position_uniform",
    "probe_row_invariance",
    "product_choice",
    "products",
    "qkv_rope",
    "record",
    "rms_norm",
    "rope_tables",
    "round_bf16",
    "round_bf16_",
    "sample_tokens",
    "swiglu",
    "swiglu_linear",
    "time_products",
    "top_k_log_probs",
    "write_kv",
]
