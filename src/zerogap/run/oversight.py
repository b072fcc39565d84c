"""Watch and budget over a run: what each step's numbers set off, said, written down, and done."""

from collections.abc import Callable, Mapping
from typing import Any

from zerogap.errors import MismatchError, NumericsError
from zerogap.obs import GAP_SOURCES, JsonlFile
from zerogap.watch import BudgetController, Remedies, Watch, WatchReport


class Oversight:
    """Feeds a watch and a budget with every step. Writes alarms.jsonl, which its opener closes."""

    def __init__(
        self,
        watch: Watch,
        budget: BudgetController,
        remedies: Remedies,
        *,
        file: JsonlFile,
        say: Callable[[str], None],
    ) -> None:
        self._watch, self._budget, self._remedies = watch, budget, remedies
        self._file, self._say = file, say
        self._lines: list[str] = []
        self.is_alarmed = False
        """An alarm went on that is to stop the run."""
        self.ending: MismatchError | None = None
        """The gap stays above the budget and nothing is left to do; to be raised once the step is saved."""

    def observe(self, step: int, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Take a step's reduced metrics, and a remedy if the budget asks for one; returns ``alarm/*``.

        What there is to say about it waits for ``tell``.
        """
        report = self._watch.observe(step, metrics)
        self._note(report)
        if "gap/total/mean" in metrics:
            self._keep_budget(step, metrics)
        return report.metrics

    def failed(self, step: int, error: NumericsError) -> None:
        """A step could not be done, since a number in it was not finite."""
        self._note(self._watch.failed(step, error))
        self.tell()

    def tell(self) -> None:
        """Say what the last steps set off; behind the line of the step that it is about."""
        lines, self._lines = self._lines, []
        for line in lines:
            self._say(line)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {"watch": self._watch.state_dict(), "budget": self._budget.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state_dict``."""
        self._watch.load_state_dict(state["watch"])
        self._budget.load_state_dict(state["budget"])

    def _note(self, report: WatchReport) -> None:
        for alarm in report.alarms:
            self._file.write(alarm.record())
            self._lines.append(alarm.line())
        self.is_alarmed = self.is_alarmed or report.should_stop

    def _keep_budget(self, step: int, metrics: Mapping[str, float]) -> None:
        open_means = {source: metrics[f"gap/{source}/open/mean"] for source in GAP_SOURCES}
        decision = self._budget.observe(step, metrics["gap/total/mean"], open_means, self._remedies)
        if decision is None:
            return
        self._file.write(decision.record())
        self._lines += decision.lines()
        if decision.is_stop:
            self.ending = decision.error()
        else:
            decision.apply(self._remedies)
