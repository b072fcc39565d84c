"""Tensor functions that engine and trainer share, computed by a backend: C++ on a CPU, torch anywhere.

``backend.py`` is the contract; ``choice.py`` picks the backend of a call. Every function is batch-invariant: a row's
bits depend on that row (in attention, also on its own keys) and never on the rows computed beside it. This makes the
trainer's log-prob of a token equal to the engine's. ``kernel_report()`` says which kernels run and why. ``capture``
turns a forward pass made of these functions into a captured graph, which runs without the Python between them.
"""

from zerogap.kernels.attention import packed_attention, paged_attention, write_kv
from zerogap.kernels.backend import PLAIN, Backend, Compute, Gemm, SamplingRows
from zerogap.kernels.choice import backend_of, gemm_choice
from zerogap.kernels.constants import PAGE_SIZE, ROW_MULTIPLE, VOCAB_CHUNK
from zerogap.kernels.crossing import to_device, to_host
from zerogap.kernels.gradients import embedding
from zerogap.kernels.graph import Arena, CapturedGraph, NotCapturable, capture
from zerogap.kernels.head import Head, log_probs, log_probs_of, log_probs_with_squares
from zerogap.kernels.head_top_k import top_k_log_probs
from zerogap.kernels.layout import AttentionPlan, PackedLayout, build_packed_layout
from zerogap.kernels.linear import linear, norm_linear, swiglu_linear
from zerogap.kernels.noise import position_uniform
from zerogap.kernels.probe import (
    InvarianceProbe,
    ensure_batch_invariance,
    kernel_report,
    probe_batch_invariance,
)
from zerogap.kernels.rounding import round_bf16, round_bf16_
from zerogap.kernels.rowwise import qkv_rope, rms_norm, rope_tables, swiglu
from zerogap.kernels.sampling import LogitsBuffer, sample_tokens
from zerogap.kernels.speed import FastGemm, GemmTimes, time_gemm

__all__ = [
    "PAGE_SIZE",
    "PLAIN",
    "ROW_MULTIPLE",
    "VOCAB_CHUNK",
    "Arena",
    "AttentionPlan",
    "Backend",
    "CapturedGraph",
    "Compute",
    "FastGemm",
    "Gemm",
    "GemmTimes",
    "Head",
    "InvarianceProbe",
    "LogitsBuffer",
    "NotCapturable",
    "PackedLayout",
    "SamplingRows",
    "backend_of",
    "build_packed_layout",
    "capture",
    "embedding",
    "ensure_batch_invariance",
    "gemm_choice",
    "kernel_report",
    "linear",
    "log_probs",
    "log_probs_of",
    "log_probs_with_squares",
    "norm_linear",
    "packed_attention",
    "paged_attention",
    "position_uniform",
    "probe_batch_invariance",
    "qkv_rope",
    "rms_norm",
    "rope_tables",
    "round_bf16",
    "round_bf16_",
    "sample_tokens",
    "swiglu",
    "swiglu_linear",
    "time_gemm",
    "to_device",
    "to_host",
    "top_k_log_probs",
    "write_kv",
]
