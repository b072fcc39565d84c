"""The mismatch budget: while the audited gap stays above it, apply the allowed remedies one by one, then stop the run.

Comes in: ``gap/total/mean`` of each audited step and its parts by source, measured *before* any correction, so a
correction never counts as a smaller gap. Goes out: nothing, a remedy to apply, or the end of the run with an
error that names the source. A pure state machine; ``Remedies`` does the work.

The order is fixed, cheapest first: corrections, staleness (one step of lag at a time, down to none), numerics, the end.
Each needs ``patience`` consecutive audited steps above the budget. A remedy that cannot apply, or whose sources are all
exactly 0, is skipped this time, and the log says why. It may apply later: with a lag, the first samples are not yet old.
No remedy exists for ``sampling``: the recipe truncates, and importance weights do not contain it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, get_args

from zerogap.config import MismatchConfig
from zerogap.config.monitoring import Remedy
from zerogap.errors import MismatchError
from zerogap.obs import WEIGHED_SOURCES

ORDER: tuple[Remedy, ...] = get_args(Remedy)
_CLOSES: dict[Remedy, tuple[str, ...]] = {
    "corrections": WEIGHED_SOURCES,
    "staleness": ("staleness",),
    "numerics": ("numbers",),
}
"""The sources that each remedy addresses. Corrections close no source: they weight the tokens by it."""
_WHY_NOTHING: dict[Remedy, str] = {
    "corrections": "the gap from numbers, routing and staleness is 0.0, and importance weights contain no other source",
    "staleness": "the gap from staleness is 0.0",
    "numerics": "the gap from numbers is 0.0",
}
"""Why a remedy is skipped whose sources are all exactly 0."""
_HOW_TO_CLOSE = {
    "sampling": "set rollout.sampling.top_p = 1, top_k = -1 and min_p = 0 (no remedy closes it, and importance weights do not contain it)"
}
"""What a user can do about a source that no remedy addresses; the others: docs/numerics.md."""


class Remedies(Protocol):
    """What a run can do about its gap. Called between two steps."""

    def why_not(self, remedy: Remedy) -> str | None:
        """Why a remedy cannot be applied now (already active, or not available here); None if it can."""

    def switch_on_corrections(self) -> None:
        """Use importance weights from the next step on."""

    def reduce_lag(self) -> None:
        """Sample with weights one step younger from the next step on."""

    def exact_numerics(self) -> None:
        """Use batch-invariant kernels and one precision on both sides from the next step on."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision after a step above the budget."""

    step: int
    total: float
    """gap/total/mean of the step, nats per token, before corrections."""
    budget: float
    num_tokens: int
    """Audited tokens of the step, which ``total`` is over."""
    num_samples: int
    """Samples that they belong to."""
    num_steps_above: int
    """Consecutive audited steps above the budget, this one included."""
    source: str
    """Largest open part of the gap."""
    source_mean: float
    remedy: Remedy | None
    """The remedy to apply; None if none is left: the run ends."""
    remedy_for: str
    """The largest source that the remedy addresses; empty without a remedy."""
    passed_over: tuple[tuple[Remedy, str], ...]
    """Skipped remedies, and why."""

    @property
    def is_stop(self) -> bool:
        """Whether the run ends here."""
        return self.remedy is None

    def apply(self, remedies: Remedies) -> None:
        """Apply the remedy; nothing if none is left."""
        if self.remedy == "corrections":
            remedies.switch_on_corrections()
        elif self.remedy == "staleness":
            remedies.reduce_lag()
        elif self.remedy == "numerics":
            remedies.exact_numerics()

    def error(self) -> MismatchError:
        """The error that ends the run."""
        tried = "; ".join(f"{remedy}: {why}" for remedy, why in self.passed_over)
        cure = _HOW_TO_CLOSE.get(self.source, "close it (see docs/numerics.md)")
        msg = f"{self._finding()}, and no remedy is left in mismatch.remedies ({tried}). The largest source is {self.source} ({self.source_mean:.3g} nats): {cure}, or set a higher mismatch.budget"
        return MismatchError(msg)

    def lines(self) -> list[str]:
        """Lines for the console: what is done and why."""
        lines = [f"mismatch budget: {remedy} skipped: {why}" for remedy, why in self.passed_over]  # fmt: skip
        if self.remedy is None:
            return [*lines, f"mismatch budget: {self._finding()}; no remedy is left, the run stops"]  # fmt: skip
        note = (
            " (the gap is measured before corrections, so it does not shrink)"
            if self.remedy == "corrections"
            else ""
        )
        return [*lines, f"mismatch budget: {self._finding()}, mostly {self.source} ({self.source_mean:.3g}); remedy: {self.remedy}{note}"]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """A line of alarms.jsonl."""
        return {"event": "stop" if self.is_stop else "remedy", **asdict(self)}

    def _finding(self) -> str:
        steps = "1 audited step" if self.num_steps_above == 1 else f"{self.num_steps_above} audited steps"  # fmt: skip
        return f"step {self.step}: gap/total/mean = {self.total:.3g} nats over {self.num_tokens:,} tokens of {self.num_samples:,} samples has been above mismatch.budget = {self.budget:.3g} for {steps}"


class BudgetController:
    """Counts steps above the budget and chooses remedies. Mutated by ``observe`` and ``load_state_dict``."""

    def __init__(self, config: MismatchConfig) -> None:
        """A controller before the first step; without ``config.budget`` it never decides anything."""
        self._config = config
        self._num_above = 0

    def observe(
        self,
        step: int,
        total: float,
        open_means: Mapping[str, float],
        remedies: Remedies,
        *,
        num_tokens: int,
        num_samples: int,
    ) -> Decision | None:
        """Take one audited step; call it for no others.

        Args:
            step: its number.
            total: gap/total/mean, nats per token.
            open_means: gap/<source>/open/mean by source.
            remedies: only asked what can be applied.
            num_tokens: audited ones, which the means are over.
            num_samples: that they belong to.
        """
        budget = self._config.budget
        if budget is None:
            return None
        self._num_above = self._num_above + 1 if total > budget else 0
        if self._num_above < self._config.patience:
            return None
        num_above, self._num_above = self._num_above, 0
        source, mean = max(open_means.items(), key=lambda item: item[1])
        remedy, remedy_for, passed_over = self._choose(open_means, remedies)
        return Decision(
            step=step,
            total=total,
            budget=budget,
            num_tokens=num_tokens,
            num_samples=num_samples,
            num_steps_above=num_above,
            source=source,
            source_mean=mean,
            remedy=remedy,
            remedy_for=remedy_for,
            passed_over=tuple(passed_over),
        )

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON. The run itself keeps what remedies have changed."""
        return {"num_above": self._num_above}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self._num_above = int(state["num_above"])

    def _choose(
        self, open_means: Mapping[str, float], remedies: Remedies
    ) -> tuple[Remedy | None, str, list[tuple[Remedy, str]]]:
        """(remedy, the source it addresses, skipped remedies and why)."""
        passed_over: list[tuple[Remedy, str]] = []
        for remedy in ORDER:
            target = max(_CLOSES[remedy], key=lambda source: open_means.get(source, 0.0))
            why_not = self._why_not(remedy, remedies)
            if open_means.get(target, 0.0) <= 0:
                why_not = _WHY_NOTHING[remedy]
            if why_not is None:
                return remedy, target, passed_over
            passed_over.append((remedy, why_not))
        return None, "", passed_over

    def _why_not(self, remedy: Remedy, remedies: Remedies) -> str | None:
        if remedy not in self._config.remedies:
            return "mismatch.remedies does not allow it"
        return remedies.why_not(remedy)
