"""Computes the numbers of a report from measured runs: medians, with their extremes in ``spread``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from zerogap_bench.flops import ModelShape, PromptWork, Work, decode_bytes, generation_work
from zerogap_bench.gemm import limit_gflops, phase_limit_gflops, share_of_limit
from zerogap_bench.records import Measured, PeerMeasured
from zerogap_bench.shapes import RunShape
from zerogap_bench.tables import spread


def summarise(
    model: ModelShape,
    shape: RunShape,
    runs: Sequence[Measured],
    count_works: Callable[[Measured], Mapping[str, Work]],
) -> dict[str, Any]:
    """The numbers of zerogap's side.

    Args:
        model: sizes of the model.
        shape: of the runs.
        runs: at least one, each with its limits.
        count_works: gives the model FLOPs of a run by phase.
    """
    limits = {"before": [], "after": [], "mean": []}
    shares, works_of = [], [count_works(run) for run in runs]
    for run, works in zip(runs, works_of, strict=True):
        for name, chosen in {"before": slice(0, 1), "after": slice(1, 2), "mean": slice(0, 2)}.items():  # fmt: skip
            measured = {phase: pair[chosen] for phase, pair in run.limits.items()}
            limits[name].append(limit_gflops(model, works, measured))
        shares.append(share_of_limit(_total(works), seconds=run.seconds, limit=limits["mean"][-1]))
    rates = [shape.num_output_tokens / run.seconds for run in runs]
    return {
        "shape": str(shape),
        "tokens_per_s": median(rates),
        "share_of_limit": median(shares),
        "limit_gflops": median(limits["mean"]),
        "limit_gflops_before": median(limits["before"]),
        "limit_gflops_after": median(limits["after"]),
        "share_of_fma_peak": _median_or_none(
            share_of_limit(_total(works), seconds=run.seconds, limit=mean(run.fma_gflops))
            if run.fma_gflops else None
            for run, works in zip(runs, works_of, strict=True)
        ),
        "fma_peak_gflops": _median_or_none(
            mean(run.fma_gflops) if run.fma_gflops else None for run in runs
        ),
        "peak_rss_gb": max(run.peak_rss_gb for run in runs),
        "seconds": median(run.seconds for run in runs),
        "num_recomputed_tokens": max(run.num_recomputed_tokens for run in runs),
        "spread": {
            "seconds": spread([run.seconds for run in runs]),
            "tokens_per_s": spread(rates),
            "share_of_limit": spread(shares),
            "limit_gflops": spread(limits["mean"]),
        },
        "phases": {
            phase: _phase(model, runs, [works[phase] for works in works_of], phase)
            for phase in works_of[0]
        },
        "seconds_by_part": {
            part: median(run.seconds_by_part[part] for run in runs) for part in runs[0].seconds_by_part
        },
        "others_load": [run.others_load for run in runs],
    }  # fmt: skip


def rollout_work(model: ModelShape, run: Measured) -> Work:
    """The work of the engine in a run; rows that siblings share count once."""
    return generation_work(
        model, run.prompts, num_rows=run.num_generation_rows, num_head_rows=run.num_head_rows
    )


def summarise_decoding(model: ModelShape, runs: Sequence[Measured]) -> dict[str, Any] | None:
    """Decoding of a single sequence as a share of memory bandwidth; None if it was not measured.

    ``bytes_per_token``: a step reads every matrix once, and the keys and values of its context.
    """
    found = [(run, run.decoding) for run in runs if run.decoding is not None]
    if not found:
        return None
    rates = [_decode_bytes(model, run.prompts) / d.seconds_per_token / 1e9 for run, d in found]
    reads = [mean(d.read_gb_s) for _, d in found]
    copies = [mean(d.copy_gb_s) for _, d in found]
    return {
        "ms_per_token": spread([d.seconds_per_token * 1e3 for _, d in found]),
        "bytes_per_token": _decode_bytes(model, found[0][0].prompts),
        "gb_s": median(rates),
        "read_gb_s": median(reads),
        "copy_gb_s": median(copies),
        "share_of_read": median(a / b for a, b in zip(rates, reads, strict=True)),
        "share_of_copy": median(a / b for a, b in zip(rates, copies, strict=True)),
    }


def summarise_peer(
    shape: RunShape, runs: Sequence[PeerMeasured], ours: Sequence[Measured]
) -> dict[str, Any]:
    """The numbers of a peer; ``ratio`` is its time over zerogap's in consecutive runs."""
    generating = [run.generate_s for run in runs if run.generate_s is not None]
    return {
        "tokens_per_s": spread([shape.num_output_tokens / run.seconds for run in runs]),
        "seconds": spread([run.seconds for run in runs]),
        "generate_s": spread(generating) if generating else None,
        "peak_rss_gb": max(run.peak_rss_gb for run in runs),
        "ratio": spread([t.seconds / o.seconds for t, o in zip(runs, ours, strict=False)]),
        "others_load": [run.others_load for run in runs],
    }


def _phase(
    model: ModelShape, runs: Sequence[Measured], works: Sequence[Work], phase: str
) -> dict[str, float | None]:
    """Work, rate and limits of one phase."""
    pairs = list(zip(runs, works, strict=True))
    rates = [work.total / run.phase_seconds[phase] / 1e9 for run, work in pairs]
    limits = [phase_limit_gflops(model, work, run.limits[phase]) for run, work in pairs]
    peaks = [mean(run.fma_gflops) if run.fma_gflops else None for run in runs]
    return {
        "seconds": median(run.phase_seconds[phase] for run in runs),
        "body_gflop": works[0].body / 1e9,
        "head_gflop": works[0].head / 1e9,
        "attention_gflop": works[0].attention / 1e9,
        "gflops": median(rates),
        "limit_gflops": median(limits),
        "share_of_limit": median(r / limit for r, limit in zip(rates, limits, strict=True)),
        "share_of_fma_peak": _median_or_none(
            rate / peak if peak else None for rate, peak in zip(rates, peaks, strict=True)
        ),
    }


def _decode_bytes(model: ModelShape, prompts: Sequence[PromptWork]) -> float:
    (prompt,) = prompts
    (num_answer,) = prompt.num_answers
    return decode_bytes(model, num_prompt=prompt.num_prompt, num_answer=num_answer)


def _total(works: Mapping[str, Work]) -> float:
    return sum(work.total for work in works.values())


def _median_or_none(values: Iterable[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return median(found) if found else None
