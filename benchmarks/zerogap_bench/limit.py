"""How fast are this machine's GEMMs at the model's shapes, its multiply-adds and its memory?"""

from collections.abc import Sequence
from statistics import median
from typing import Any

from zerogap_bench.flops import ModelShape, forward_work, gemm_flops
from zerogap_bench.gemm import Limit, harmonic_mean
from zerogap_bench.question import Setting
from zerogap_bench.tables import Table, show_share, spread
from zerogap_bench.workers import Worker


class MachineLimit:
    """Measures the limits that all shares refer to."""

    name = "limit"

    def __init__(self, rows: Sequence[int], *, repeats: int) -> None:
        self._repeats = repeats
        self._limits: dict[int, list[Limit]] = {num: [] for num in rows}
        self._fma: list[float] = []
        self._bandwidth: list[tuple[float, float]] = []
        self._model: ModelShape | None = None
        self.failures: list[str] = []

    @property
    def num_prompts(self) -> int:
        """Prompts are not used; the preparation needs at least one."""
        return 1

    def measure(self, setting: Setting) -> None:
        """Measure every number of rows in turn, repeatedly."""
        self._model = setting.prepared.shape
        with Worker(
            "limit", "zerogap_bench.gemm:LimitSide",
            threads=setting.prepared.threads, shape=setting.prepared.shape,
        ) as side:  # fmt: skip
            for repeat in range(self._repeats):
                setting.say(f"limit: measurement {repeat + 1}")
                for num, limits in self._limits.items():
                    limit, fma = side.call("measure", num_rows=num)
                    limits.append(limit)
                    if fma is not None:
                        self._fma.append(fma)
                self._bandwidth.append(side.call("bandwidth"))

    def tables(self) -> list[Table]:
        """One row per library and number of rows; memory below."""
        peak = median(self._fma) if self._fma else None
        rows = [
            {
                "rows": result["rows"],
                "by": library,
                **{product: s["median"] for product, s in found["gemms"].items()},
                "all": found["gflops"]["median"],
                "share of FMA peak": show_share(found["gflops"]["median"] / peak if peak else None),
            }
            for result in self._results()
            for library, found in result["by"].items()
        ]
        if not rows:
            return []
        notes = [f"multiply-adds on registers: {peak:.0f} GFLOP/s"] if peak else []
        if self._bandwidth:
            read, copy = (median(column) for column in zip(*self._bandwidth, strict=True))
            notes.append(f"memory: {read:.1f} GB/s read; {copy:.1f} GB/s read plus written in a copy")  # fmt: skip
        return [Table("GEMM: GFLOP/s, median of the measurements", rows, notes)]

    def report(self) -> dict[str, Any]:
        """All numbers with their spread."""
        reads, copies = zip(*self._bandwidth, strict=True) if self._bandwidth else ((), ())
        return {
            "rows": self._results(),
            "fma_peak_gflops": spread(self._fma) if self._fma else None,
            "read_gb_s": spread(reads) if reads else None,
            "copy_gb_s": spread(copies) if copies else None,
        }

    def _results(self) -> list[dict[str, Any]]:
        model = self._model
        if model is None:
            return []
        found = []
        for num, limits in self._limits.items():
            if limits:
                work = forward_work(model, num_rows=num, num_head_rows=num, num_keys=0)
                flops = gemm_flops(model, work)
                libraries = limits[0].by_library
                by = {
                    library: [limit.by_library[library] for limit in limits]
                    for library in libraries
                }
                by["the faster (the limit)"] = [limit.rates for limit in limits]
                found.append({
                    "rows": num,
                    "by": {
                        library: {
                            "gflops": spread([harmonic_mean(flops, rates) for rates in measured]),
                            "gemms": {p: spread([rates[p] for rates in measured]) for p in flops},
                        }
                        for library, measured in by.items()
                    },
                })  # fmt: skip
        return found
