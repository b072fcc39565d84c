"""Results of measured runs, as sent to the main process. Imports neither torch nor a peer."""

from dataclasses import dataclass, field

from zerogap_bench.flops import PromptWork
from zerogap_bench.gemm import Limit


@dataclass(frozen=True)
class Decoding:
    """Decoding of a run after its first token."""

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
    """Share of all cores that other processes used during the run."""
    prompts: tuple[PromptWork, ...]
    limits: dict[str, tuple[Limit, Limit]]
    """By phase: before and after the run."""
    phase_seconds: dict[str, float]
    """By phase."""
    fma_gflops: tuple[float, float] | None
    """Multiply-adds on registers, before and after the run; None without the C++ kernels."""
    peak_rss_gb: float
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    num_recomputed_tokens: int = 0
    """Rows that the engine computed twice; they do not count as work."""
    num_generation_rows: int = 0
    """Rows that the engine computed for the first time."""
    num_head_rows: int = 0
    """Hidden states from which tokens were drawn."""
    num_training_rows: int = 0
    num_distinct_training_rows: int = 0
    """Training rows without repetitions by several micro-batches."""
    num_micro_batches: int = 0
    decoding: Decoding | None = None
    """Set for a single sequence."""


@dataclass(frozen=True, kw_only=True)
class ScalingCell:
    """Decoding with one number of sequences and one context length."""

    num_sequences: int
    group_size: int
    """Sequences that share a prompt."""
    context: int
    """Tokens of a prompt."""
    prefill_tokens_per_s: float
    """Prompt tokens per second, each computed once."""
    seconds_per_step: tuple[float, ...]
    """One timing each: seconds of a step that decodes one token per sequence."""
    bytes_per_context_token: float | None
    """Growth of resident memory per token over the second half of the prompts; None if it is unknown or too small."""


@dataclass(frozen=True, kw_only=True)
class PeerMeasured:
    """One timed run of a peer."""

    seconds: float
    others_load: float | None
    peak_rss_gb: float
    generate_s: float | None = None
    """Seconds of generation, if a run also does other work."""
