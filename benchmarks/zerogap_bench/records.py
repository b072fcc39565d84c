"""What a measured run tells the process that asked for it; no imports that cost anything."""

from dataclasses import dataclass, field

from zerogap_bench.flops import PromptWork
from zerogap_bench.gemm import Limit


@dataclass(frozen=True)
class Decoding:
    """The steps of a run after its first token."""

    seconds_per_token: float
    read_gb_s: tuple[float, float]
    """Read bandwidth of memory before and after, in 10^9 bytes a second."""
    copy_gb_s: tuple[float, float]
    """Bytes read plus bytes written by a copy, before and after."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One timed run of zerogap."""

    seconds: float
    others_load: float | None
    """Share of all cores that other processes took meanwhile."""
    prompts: tuple[PromptWork, ...]
    limits: dict[str, tuple[Limit, Limit]]
    """By phase: before and after the run."""
    phase_seconds: dict[str, float]
    """By phase."""
    fma_gflops: tuple[float, float] | None
    """Multiply-adds from registers alone, before and after the run; None without the C++ kernels."""
    peak_rss_gb: float
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    num_recomputed_tokens: int = 0
    """Rows that the engine computed twice; they get no credit."""
    num_generation_rows: int = 0
    """Rows that the engine computed for the first time."""
    num_head_rows: int = 0
    """Hidden states that tokens were drawn from."""
    num_training_rows: int = 0
    num_distinct_training_rows: int = 0
    """Without those that several micro-batches compute."""
    num_micro_batches: int = 0
    decoding: Decoding | None = None
    """Of a single sequence."""


@dataclass(frozen=True, kw_only=True)
class ScalingCell:
    """Decoding at one number of sequences and one length of context."""

    num_sequences: int
    group_size: int
    """Sequences that share a prompt."""
    context: int
    """Tokens of a prompt."""
    prefill_tokens_per_s: float
    """Prompt tokens, each computed once."""
    seconds_per_step: tuple[float, ...]
    """Of one decoded token in every sequence, one timing each."""
    bytes_per_context_token: float | None
    """Growth of resident memory while the second half of the prompts was computed, a token; None where it is unknown or too little."""


@dataclass(frozen=True, kw_only=True)
class PeerMeasured:
    """One timed run of a peer."""

    seconds: float
    others_load: float | None
    peak_rss_gb: float
    generate_s: float | None = None
    """Of it, spent generating, where a run does more."""
