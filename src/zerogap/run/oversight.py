"""Applies watch and budget to a run: writes and prints alarms and decisions, and applies remedies."""

from collections.abc import Callable, Mapping
from typing import Any

from zerogap.errors import MismatchError, NumericsError
from zerogap.obs import GAP_SOURCES, JsonlFile
from zerogap.watch import BudgetController, Remedies, Watch, WatchReport


class Oversight:
    """Gives every step's metrics to a watch and a budget. Writes alarms.jsonl, which the caller closes."""

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
        """Whether an alarm went on that must stop the run."""
        self.ending: MismatchError | None = None
        """The error to raise after the step is saved: the gap stays above the budget, and no remedy is left."""

    def observe(self, step: int, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Take a step's reduced metrics, and apply a remedy if the budget asks for one; returns ``alarm/*``.

        Messages are printed by ``tell``.
        """
        report = self._watch.observe(step, metrics)
        self._note(report)
        if "gap/total/mean" in metrics:
            self._keep_budget(step, metrics)
        return report.metrics

    def failed(self, step: int, error: NumericsError) -> None:
        """Take the error of a step that failed because a number was not finite or had two values."""
        self._note(self._watch.failed(step, error))
        self.tell()

    def tell(self) -> None:
        """Print the pending messages; call it after the step's own line."""
        lines, self._lines = self._lines, []
        for line in lines:
            self._say(line)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {"watch": self._watch.state_dict(), "budget": self._budget.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a ``state_dict``."""
        self._watch.load_state_dict(state["watch"])
        self._budget.load_state_dict(state["budget"])

    def _note(self, report: WatchReport) -> None:
        for alarm in report.alarms:
            self._file.write(alarm.to_json())
            self._lines.append(alarm.line())
        self.is_alarmed = self.is_alarmed or report.should_stop

    def _keep_budget(self, step: int, metrics: Mapping[str, float]) -> None:
        open_means = {source: metrics[f"gap/{source}/open/mean"] for source in GAP_SOURCES}
        decision = self._budget.observe(
            step,
            metrics["gap/total/mean"],
            open_means,
            self._remedies,
            num_tokens=int(metrics["gap/num_tokens"]),
            num_samples=int(metrics["gap/num_samples"]),
        )
        if decision is None:
            return
        self._file.write(decision.to_json())
        self._lines += decision.lines()
        if decision.is_stop:
            self.ending = decision.error()
        else:
            decision.apply(self._remedies)
