"""One line per step on the console."""

from collections.abc import Iterator

from rich.console import Console

from zerogap.obs.clock import format_duration
from zerogap.obs.sinks import Metrics


class ConsoleSink:
    """Prints one line per step, in fixed columns; what was not measured is left out."""

    def __init__(self, console: Console, *, total_steps: int) -> None:
        self._console = console
        self._total_steps = total_steps
        self._step_times_s: list[float] = []

    def write(self, step: int, weight_version: int, metrics: Metrics) -> None:
        """Print the step."""
        if "step/time_s" in metrics and step > 0:
            self._step_times_s.append(metrics["step/time_s"])
        line = "  ".join(self._parts(step, metrics))
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Do nothing: no line is pending."""

    def _parts(self, step: int, metrics: Metrics) -> Iterator[str]:
        width = len(str(self._total_steps))
        yield f"step {step:>{width}}/{self._total_steps}"
        for name, label, form in _COLUMNS:
            if name in metrics:
                yield f"{label} {form(metrics[name])}{_measured_on(name, metrics)}"
        if "reward/mean" not in metrics and "train/loss" in metrics:
            yield f"loss {_number(metrics['train/loss'])}"
        if "step/time_s" in metrics:
            yield _times(metrics)
        if 0 < step < self._total_steps and self._step_times_s:
            yield f"ETA {format_duration(self._seconds_left(step))}"

    def _seconds_left(self, step: int) -> float:
        # Only recent steps, because the length of completions changes during a run.
        recent = self._step_times_s[-10:]
        return (self._total_steps - step) * sum(recent) / len(recent)


def _number(value: float) -> str:
    return f"{value:.3f}"


def _gap(value: float) -> str:
    """Exactly 0 must look different from nearly 0."""
    return "0.0" if value == 0 else f"{value:.1e}"


def _measured_on(name: str, metrics: Metrics) -> str:
    """The samples and tokens behind a number that is measured on a share of them."""
    counts = [f"{metrics[key]:,.0f} {what}" for key, what in _COUNTS.get(name, ()) if key in metrics]  # fmt: skip
    return f" ({', '.join(counts)})" if counts else ""


def _rate(value: float) -> str:
    return f"{value:,.0f}"


def _times(metrics: Metrics) -> str:
    names = (("generate", "gen"), ("train", "train"), ("evaluate", "eval"))
    parts = [
        f"{label} {metrics[key]:.1f}"
        for name, label in names
        if (key := f"step/{name}_s") in metrics
    ]
    inner = f" ({', '.join(parts)})" if parts else ""
    return f"{metrics['step/time_s']:.1f} s{inner}"


_COLUMNS = (
    ("reward/mean", "reward", _number),
    ("eval/reward/mean", "eval", _number),
    ("eval/sampled/reward/mean", "sampled", _number),
    ("gap/total/mean", "gap", _gap),
    ("gap/trained/max", "max", _gap),
    ("staleness/max", "stale", _rate),
    ("engine/tokens_per_s", "tok/s", _rate),
)
_COUNTS = {
    "gap/total/mean": (("gap/num_samples", "samples"), ("gap/num_tokens", "tokens")),
    "gap/trained/max": (("gap/trained/num_tokens", "tokens"),),
}
