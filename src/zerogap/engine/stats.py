"""What the engine has done since it was built, as counters that only grow."""

from dataclasses import dataclass, fields, replace
from typing import Any

from zerogap.engine.plan import ScheduledRows
from zerogap.types import FinishReason


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Counters; subtract two snapshots for what happened between them. They count tokens unless they say otherwise."""

    num_steps: int = 0
    """Forward passes."""
    num_prefill_tokens: int = 0
    """Rows of prompts and scored sequences, computed for the first time."""
    num_decode_tokens: int = 0
    """Rows of drawn tokens, computed for the first time."""
    num_shared_decode_tokens: int = 0
    """Rows of drawn tokens that a sibling with the same tokens computed instead."""
    num_head_rows: int = 0
    """Rows of logits computed for draws; siblings with the same hidden state share one."""
    num_recomputed_tokens: int = 0
    """Rows computed again after a retraction or a weight update."""
    num_cached_tokens: int = 0
    """Rows that were already computed when a sequence started, in the prefix cache or by a sibling."""
    num_sampled_tokens: int = 0
    """Tokens drawn."""
    num_retractions: int = 0
    """How often a running sequence gave its pages back to run again later."""
    num_finished: int = 0
    """Completions that ended without an abort."""
    num_aborted: int = 0
    """Completions that were aborted."""
    schedule_s: float = 0.0
    """Seconds spent on planning steps and building their arrays."""
    compute_s: float = 0.0
    """Seconds spent in forward passes and draws."""
    commit_s: float = 0.0
    """Seconds spent on storing drawn tokens: stop conditions, text, outputs."""

    @property
    def num_computed_tokens(self) -> int:
        """All computed rows."""
        return self.num_prefill_tokens + self.num_decode_tokens + self.num_recomputed_tokens

    def __sub__(self, earlier: "EngineStats") -> "EngineStats":
        names = [field.name for field in fields(self)]
        return replace(self, **{n: getattr(self, n) - getattr(earlier, n) for n in names})


class StatsCounter:
    """The engine's own, growing counters."""

    def __init__(self) -> None:
        self._counts: dict[str, Any] = {field.name: field.default for field in fields(EngineStats)}

    def snapshot(self, *, num_retractions: int, num_cached_tokens: int) -> EngineStats:
        """The counters up to now; the scheduler brings its own two."""
        own = {"num_retractions": num_retractions, "num_cached_tokens": num_cached_tokens}
        return EngineStats(**self._counts | own)

    def count_rows(self, scheduled: ScheduledRows) -> None:
        """Count computed rows. Call it before the sequence advances."""
        if scheduled.duplicate_of is not None:
            self._counts["num_shared_decode_tokens"] += scheduled.num_rows
            return
        sequence, start = scheduled.sequence, scheduled.sequence.num_computed
        end = start + scheduled.num_rows
        first_new = max(start, min(sequence.max_computed, end))
        prompt_end = min(max(first_new, sequence.num_prompt), end)
        self._counts["num_recomputed_tokens"] += first_new - start
        self._counts["num_prefill_tokens"] += prompt_end - first_new
        self._counts["num_decode_tokens"] += end - prompt_end

    def count_step(self, *, num_sampled: int, num_head_rows: int, lap_s: list[float]) -> None:
        """Count a step; ``lap_s`` are its seconds of scheduling, computing and committing."""
        self._counts["num_steps"] += 1
        self._counts["num_head_rows"] += num_head_rows
        self._counts["num_sampled_tokens"] += num_sampled
        for name, seconds in zip(("schedule_s", "compute_s", "commit_s"), lap_s, strict=True):
            self._counts[name] += seconds

    def count_end(self, reason: FinishReason) -> None:
        """Count an ended completion."""
        self._counts["num_aborted" if reason.kind == "abort" else "num_finished"] += 1
