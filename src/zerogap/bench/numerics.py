"""What does ``numerics = "exact"`` cost against ``"fast"``, in the time of a GRPO step?

Two processes of the same kind take turns; one starts as a run with "exact" does, with the check of row invariance on the
model's own shapes, the other as one with "fast" does, without. Where "exact" can only be had with slower products (fixed
tiles), its steps show it; where the kernels are the same, the two differ by the check alone and by noise.
"""

from contextlib import ExitStack
from typing import Any

from zerogap.bench.grpo_step import micro_batch_rows, start_step
from zerogap.bench.question import Setting
from zerogap.bench.records import Measured
from zerogap.bench.shapes import RunShape
from zerogap.bench.tables import Table, load_warning, show_spread, spread

_NUMERICS = ("exact", "fast")


class Numerics:
    """Steps of both kinds, in pairs."""

    name = "numerics"

    def __init__(self, shape: RunShape, *, repeats: int, micro_batch_tokens: int = 1024) -> None:
        self._shape, self._repeats = shape, repeats
        self._micro_batch_tokens = micro_batch_tokens
        self._runs: dict[str, list[Measured]] = {numerics: [] for numerics in _NUMERICS}
        self._probe_s: float | None = None
        self.failures: list[str] = []

    @property
    def num_prompts(self) -> int:
        """Of the shape."""
        return self._shape.num_prompts

    def measure(self, setting: Setting) -> None:
        """Pairs of steps, each pair in the other order: whoever comes second meets a warmer machine."""
        rows = micro_batch_rows(setting.prepared, self._shape, self._micro_batch_tokens)
        with ExitStack() as stack:
            sides = {}
            for numerics in _NUMERICS:
                setting.say(f"numerics: starting {numerics}")
                sides[numerics] = stack.enter_context(
                    start_step(
                        setting.prepared, self._shape, self._micro_batch_tokens, numerics=numerics
                    )
                )
            self._probe_s = sides["exact"].call("probe_s")
            for repeat in range(self._repeats):
                for numerics in _NUMERICS if repeat % 2 == 0 else reversed(_NUMERICS):
                    run = sides[numerics].call(
                        "run", seed=repeat, num_training_rows=rows, with_limits=False
                    )
                    self._runs[numerics].append(run)
                    setting.say(f"numerics {self._shape}, run {repeat + 1}, {numerics}: {run.seconds:.1f} s")  # fmt: skip

    def tables(self) -> list[Table]:
        """Both step times and their ratio."""
        found = self.report()
        if not found.get("ratio"):
            return []
        rows = [
            {"numerics": name, "step s": show_spread(found[name]), "exact / fast": ratio, "check at start s": probe}
            for name, ratio, probe in (
                ("exact", show_spread(found["ratio"]), f"{found['probe_s']:.2f}"),
                ("fast", "", "0"),
            )
        ]  # fmt: skip
        loads = [run.others_load for runs in self._runs.values() for run in runs]
        return [Table(f"Exact and fast numerics: a GRPO step of {self._shape}", rows, load_warning(loads))]  # fmt: skip

    def report(self) -> dict[str, Any]:
        """Step times, and the ratio of pairs."""
        seconds = {name: [run.seconds for run in runs] for name, runs in self._runs.items()}
        pairs = list(zip(seconds["exact"], seconds["fast"], strict=False))
        if not pairs:
            return {}
        return {
            "shape": str(self._shape),
            **{name: spread(values) for name, values in seconds.items()},
            "ratio": spread([exact / fast for exact, fast in pairs]),
            "probe_s": self._probe_s,
        }
