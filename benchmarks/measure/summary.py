"""From measured runs to the numbers of a report: medians over runs, with their extremes in ``spread``."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from measure.flops import ModelShape, Work
from measure.gemm import limit_gflops, share_of_limit
from measure.records import Measured, PeerMeasured
from measure.report import spread
from measure.shapes import RunShape


def summarise(
    model: ModelShape,
    shape: RunShape,
    runs: Sequence[Measured],
    count_works: Callable[[Measured], Mapping[str, Work]],
) -> dict[str, Any]:
    """zerogap's side.

    Args:
        model: sizes of the model.
        shape: what was generated.
        runs: one or more.
        count_works: the model FLOPs of a run, by phase.
    """
    limits = {"before": [], "after": [], "mean": []}
    shares = []
    for run in runs:
        works = count_works(run)
        for name, chosen in {"before": slice(0, 1), "after": slice(1, 2), "mean": slice(0, 2)}.items():  # fmt: skip
            measured = {phase: pair[chosen] for phase, pair in run.limits.items()}
            limits[name].append(limit_gflops(model, works, measured))
        flops = sum(work.total for work in works.values())
        shares.append(share_of_limit(flops, seconds=run.seconds, limit=limits["mean"][-1]))
    rates = [shape.num_output_tokens / run.seconds for run in runs]
    return {
        "shape": str(shape),
        "tokens_per_s": median(rates),
        "share_of_limit": median(shares),
        "limit_gflops": median(limits["mean"]),
        "limit_gflops_before": median(limits["before"]),
        "limit_gflops_after": median(limits["after"]),
        "peak_rss_gb": max(run.peak_rss_gb for run in runs),
        "seconds": median(run.seconds for run in runs),
        "num_recomputed_tokens": max(run.num_recomputed_tokens for run in runs),
        "spread": {
            "seconds": spread([run.seconds for run in runs]),
            "tokens_per_s": spread(rates),
            "share_of_limit": spread(shares),
            "limit_gflops": spread(limits["mean"]),
        },
        "model_gflop": {
            phase: {"body": work.body / 1e9, "head": work.head / 1e9, "attention": work.attention / 1e9}
            for phase, work in count_works(runs[0]).items()
        },
        "seconds_by_part": {
            part: median(run.seconds_by_part[part] for run in runs) for part in runs[0].seconds_by_part
        },
        "others_load": [run.others_load for run in runs],
    }  # fmt: skip


def summarise_peer(
    shape: RunShape, runs: Sequence[PeerMeasured], ours: Sequence[Measured]
) -> dict[str, Any]:
    """A peer's side, and how many times its time ours is (of runs that stood beside each other)."""
    generating = [run.generate_s for run in runs if run.generate_s is not None]
    return {
        "tokens_per_s": spread([shape.num_output_tokens / run.seconds for run in runs]),
        "seconds": spread([run.seconds for run in runs]),
        "generate_s": spread(generating) if generating else None,
        "peak_rss_gb": max(run.peak_rss_gb for run in runs),
        "ratio": spread([t.seconds / o.seconds for t, o in zip(runs, ours, strict=False)]),
        "others_load": [run.others_load for run in runs],
    }
