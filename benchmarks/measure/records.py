"""What a measured run tells the process that asked for it; no imports that cost anything."""

from dataclasses import dataclass, field

from measure.flops import PromptWork
from measure.gemm import Limit


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One timed run of zerogap."""

    seconds: float
    others_load: float | None
    """Share of all cores that other processes took meanwhile."""
    prompts: tuple[PromptWork, ...]
    limits: dict[str, tuple[Limit, Limit]]
    """By phase: before and after the run."""
    peak_rss_gb: float
    seconds_by_part: dict[str, float] = field(default_factory=dict)
    num_recomputed_tokens: int = 0
    """Rows that the engine computed twice; they get no credit."""
    num_training_rows: int = 0
    num_micro_batches: int = 0


@dataclass(frozen=True, kw_only=True)
class PeerMeasured:
    """One timed run of a peer."""

    seconds: float
    others_load: float | None
    peak_rss_gb: float
    generate_s: float | None = None
    """Of it, spent generating, where a run does more."""
