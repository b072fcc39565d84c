"""The mismatch budget: while the audited gap stays above it, one allowed remedy after the other, then the end.

Comes in: each audited step's ``gap/total/mean`` and its parts by source, measured *before* any correction, so that a
correction can never count as having closed the gap. Goes out: nothing, a remedy to take, or the end of the run with an
error that names the source. A pure state machine: what a remedy does is up to ``Remedies``.

The order is that of cost and is fixed: corrections, staleness (one step younger at a time, until samples are of
the trainer's own weights), numerics, the end. Before each, the gap is above the budget for ``patience`` audited steps in
a row. A remedy that cannot apply, or whose source measures exactly 0, is passed over this time, and the log says why: with a lag
the first samples are not old yet, so a source may open later.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, get_args

from zerogap.config import MismatchConfig
from zerogap.config.monitoring import Remedy
from zerogap.errors import MismatchError
from zerogap.obs import GAP_SOURCES

ORDER: tuple[Remedy, ...] = get_args(Remedy)
_CLOSES: dict[Remedy, tuple[str, ...]] = {
    "corrections": GAP_SOURCES,
    "staleness": ("staleness",),
    "numerics": ("numbers",),
}
"""Sources that a remedy is for. Corrections close none of them: they weigh whatever is open."""


class Remedies(Protocol):
    """What a run can do about its gap. Called between two steps."""

    def why_not(self, remedy: Remedy) -> str | None:
        """Why a remedy cannot be taken now (already in force, or not available here); None if it can."""

    def switch_on_corrections(self) -> None:
        """Weigh samples by their mismatch from the next step on."""

    def reduce_lag(self) -> None:
        """Sample with weights one step younger from the next step on."""

    def exact_numerics(self) -> None:
        """Use exact kernels and one precision on both sides from the next step on."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a step's gap led to."""

    step: int
    total: float
    """gap/total/mean of the step, nats a token, before corrections."""
    budget: float
    num_steps_above: int
    """In a row, this one included."""
    source: str
    """Largest open part of the gap."""
    source_mean: float
    remedy: Remedy | None
    """What to do; None: nothing is left, the run ends."""
    remedy_for: str
    """The source that the remedy is for: the largest of those that it can close. Empty without a remedy."""
    passed_over: tuple[tuple[Remedy, str], ...]
    """Remedies before it that do not apply, and why."""

    @property
    def is_stop(self) -> bool:
        """Whether the run ends here."""
        return self.remedy is None

    def apply(self, remedies: Remedies) -> None:
        """Take the remedy.

        Raises:
            MismatchError: none is left; names the source.
        """
        if self.remedy is None:
            raise self.error()
        elif self.remedy == "corrections":
            remedies.switch_on_corrections()
        elif self.remedy == "staleness":
            remedies.reduce_lag()
        else:
            remedies.exact_numerics()

    def error(self) -> MismatchError:
        """That the run ends, why, and what a user can do."""
        tried = "; ".join(f"{remedy}: {why}" for remedy, why in self.passed_over)
        msg = f"{self._finding()}, and no remedy of mismatch.remedies is left ({tried}): most of it comes from {self.source} ({self.source_mean:.3g} nats); close that source (docs/numerics.md says how), or set a higher mismatch.budget"
        return MismatchError(msg)

    def lines(self) -> list[str]:
        """For the console and the log: what is done and why."""
        skipped = [f"mismatch budget: {remedy} passed over: {why}" for remedy, why in self.passed_over]  # fmt: skip
        if self.remedy is None:
            return [*skipped, f"mismatch budget: {self._finding()}; no remedy is left, the run stops"]  # fmt: skip
        note = (
            " (the gap is measured before corrections and stays as it is: they only weigh what is open)"
            if self.remedy == "corrections"
            else ""
        )
        return [*skipped, f"mismatch budget: {self._finding()}, mostly {self.source} ({self.source_mean:.3g}); remedy: {self.remedy}{note}"]  # fmt: skip

    def record(self) -> dict[str, Any]:
        """A line of alarms.jsonl."""
        return {"event": "stop" if self.is_stop else "remedy", **asdict(self)}

    def _finding(self) -> str:
        steps = "1 audited step" if self.num_steps_above == 1 else f"{self.num_steps_above} audited steps"  # fmt: skip
        return f"step {self.step}: gap/total/mean = {self.total:.3g} nats is above mismatch.budget = {self.budget:.3g} for {steps}"


class BudgetController:
    """Where a run stands with its budget. Mutated by ``observe`` and ``load_state_dict``."""

    def __init__(self, config: MismatchConfig) -> None:
        """A controller before the first step; with ``config.budget`` none it never decides anything."""
        self._config = config
        self._num_above = 0

    def observe(
        self, step: int, total: float, open_means: Mapping[str, float], remedies: Remedies
    ) -> Decision | None:
        """Take one audited step; a step without an audit is not told.

        Args:
            step: its number.
            total: gap/total/mean, nats a token.
            open_means: gap/<source>/open/mean by source.
            remedies: asked what can be done; nothing is done here.
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
            num_steps_above=num_above,
            source=source,
            source_mean=mean,
            remedy=remedy,
            remedy_for=remedy_for,
            passed_over=tuple(passed_over),
        )

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON. What remedies have changed is the run's to keep."""
        return {"num_above": self._num_above}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict``."""
        self._num_above = int(state["num_above"])

    def _choose(
        self, open_means: Mapping[str, float], remedies: Remedies
    ) -> tuple[Remedy | None, str, list[tuple[Remedy, str]]]:
        """(remedy, what it is for, what was passed over and why)."""
        passed_over: list[tuple[Remedy, str]] = []
        for remedy in ORDER:
            target = max(_CLOSES[remedy], key=lambda source: open_means.get(source, 0.0))
            why_not = self._why_not(remedy, remedies)
            if open_means.get(target, 0.0) <= 0:
                sources = " and ".join(_CLOSES[remedy])
                why_not = f"the gap from {sources} is 0.0 or closed by it already"
            if why_not is None:
                return remedy, target, passed_over
            passed_over.append((remedy, why_not))
        return None, "", passed_over

    def _why_not(self, remedy: Remedy, remedies: Remedies) -> str | None:
        if remedy not in self._config.remedies:
            return "mismatch.remedies does not allow it"
        return remedies.why_not(remedy)
