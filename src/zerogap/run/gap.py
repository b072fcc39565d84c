"""The gap of a step, as metrics: what the loss sees between engine and trainer, and where it comes from.

Of each sampled token: a0, the engine's log-prob within the set it could draw from; a1, its log-prob over
the whole vocabulary; a2, the trainer's log-prob with the same weights. ``sampling`` = a1 - a0,
``numbers`` = a2 - a1, ``total`` = a2 - a0. Samples of older weights do not occur in a synchronous run,
routing only with mixtures of experts, and ids are never decoded and encoded again.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from zerogap.algorithms import GapStatistics, gap_statistics
from zerogap.types import Sample


def gap_metrics(samples: Sequence[Sample], old_log_probs: Sequence[np.ndarray]) -> dict[str, float]:
    """``gap/*`` over all tokens that trained; {} if none did.

    Args:
        samples: of one step.
        old_log_probs: the trainer's, before any update, aligned with each sample; NaN where not scored.
    """
    trainer = _join(old_log_probs)
    is_scored = ~np.isnan(trainer)
    if not is_scored.any():
        return {}
    engine = _join([sample.rollout_log_probs for sample in samples])
    kept = _join([sample.kept_log_mass for sample in samples])
    total = gap_statistics(trainer, engine - kept, is_scored)
    numbers = gap_statistics(trainer, engine, is_scored)
    sampling = gap_statistics(engine, engine - kept, is_scored)
    return {
        "gap/total/mean": total.mean,
        "gap/total/max": total.max,
        "gap/total/signed_mean": total.signed_mean,
        "gap/total/k3": total.k3,
        "gap/num_tokens": float(total.num_tokens),
        **dict(_source("numbers", numbers)),
        **dict(_source("sampling", sampling)),
    }


def _join(columns: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([column.astype(np.float64) for column in columns])


def _source(name: str, statistics: GapStatistics) -> Iterator[tuple[str, float]]:
    """Nothing is replayed yet, so what a source costs is what the loss sees of it."""
    for view in ("raw", "open"):
        yield f"gap/{name}/{view}/mean", statistics.mean
        yield f"gap/{name}/{view}/max", statistics.max
