"""How much time does a GRPO step take with ``numerics = "exact"`` and ``"fast"``, and with bf16 and fp32?

Each kind has its own process; they take turns. "exact" first probes batch invariance on the model's shapes. "fast" times
both kinds of GEMM on the model's weights, and each side uses the faster one. bf16 rounds the result of each operation and
keeps fp32 master weights. The report names the kernels: kinds with the same kernels differ only by noise.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from zerogap_bench.grpo_step import micro_batch_rows, start_step
from zerogap_bench.question import Setting
from zerogap_bench.records import Measured
from zerogap_bench.shapes import RunShape
from zerogap_bench.tables import Table, load_warning, show_spread, spread


@dataclass(frozen=True)
class _Side:
    numerics: str
    precision: str

    def __str__(self) -> str:
        return f"{self.numerics}, {self.precision}"


_BASE = _Side("exact", "fp32")
_SIDES = {"exact": _BASE, "fast": _Side("fast", "fp32"), "bf16": _Side("exact", "bf16")}
_RATIOS = {"ratio": ("exact", "fast"), "bf16_ratio": ("bf16", "exact")}
"""Name in the report -> the two sides of the ratio."""


class Numerics:
    """Steps of all kinds, in turns."""

    name = "numerics"

    def __init__(self, shape: RunShape, *, repeats: int, micro_batch_tokens: int = 1024) -> None:
        self._shape, self._repeats = shape, repeats
        self._micro_batch_tokens = micro_batch_tokens
        self._runs: dict[str, list[Measured]] = {name: [] for name in _SIDES}
        self._settled: dict[str, tuple[float, str]] = {}
        self.failures: list[str] = []

    @property
    def num_prompts(self) -> int:
        """Prompts of the shape."""
        return self._shape.num_prompts

    def measure(self, setting: Setting) -> None:
        """Measure rounds of steps in alternating order, because the machine gets warmer during a round."""
        rows = micro_batch_rows(setting.prepared, self._shape, self._micro_batch_tokens)
        with ExitStack() as stack:
            sides = {}
            for name, side in _SIDES.items():
                setting.say(f"numerics: starting {side}")
                sides[name] = stack.enter_context(
                    start_step(
                        setting.prepared, self._shape, self._micro_batch_tokens,
                        numerics=side.numerics, precision=side.precision,
                    )
                )  # fmt: skip
                self._settled[name] = sides[name].call("numerics")
                setting.say(f"numerics: {self._settled[name][1]}")
            for repeat in range(self._repeats):
                for name in _SIDES if repeat % 2 == 0 else reversed(_SIDES):
                    run = sides[name].call(
                        "run", seed=repeat, num_training_rows=rows, with_limits=False
                    )
                    self._runs[name].append(run)
                    setting.say(f"numerics {self._shape}, run {repeat + 1}, {_SIDES[name]}: {run.seconds:.1f} s")  # fmt: skip

    def tables(self) -> list[Table]:
        """A table of step times, their ratios, peak memory and the time of the probe."""
        found = self.report()
        if not found:
            return []
        rows = [
            {
                "numerics": str(side),
                "step s": show_spread(found[name]),
                "exact / fast": show_spread(found["ratio"]) if name == "fast" else "",
                "bf16 / fp32": show_spread(found["bf16_ratio"]) if name == "bf16" else "",
                "peak GB": f"{found['peak_rss_gb'][name]:.2f}",
                "at the start s": f"{found['settle_s'][name]:.2f}",
            }
            for name, side in _SIDES.items()
        ]
        loads = [run.others_load for runs in self._runs.values() for run in runs]
        title = f"Numerics and precision: a GRPO step of {self._shape}"
        return [Table(title, rows, load_warning(loads))]

    def report(self) -> dict[str, Any]:
        """Step times, the ratios within each round, and the chosen kernels."""
        seconds = {name: [run.seconds for run in runs] for name, runs in self._runs.items()}
        num_rounds = min(map(len, seconds.values()))
        if not num_rounds:
            return {}
        return {
            "shape": str(self._shape),
            **{name: spread(values) for name, values in seconds.items()},
            **{
                ratio: spread([seconds[a][i] / seconds[b][i] for i in range(num_rounds)])
                for ratio, (a, b) in _RATIOS.items()
            },
            "peak_rss_gb": {
                name: max(run.peak_rss_gb for run in runs) for name, runs in self._runs.items()
            },
            "settle_s": {name: seconds for name, (seconds, _) in self._settled.items()},
            "settled": {name: report for name, (_, report) in self._settled.items()},
        }
