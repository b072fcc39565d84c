"""The gap of all tokens that the trainer scored: no attribution, no extra pass."""

from collections.abc import Sequence

import numpy as np

from zerogap.algorithms import gap_statistics
from zerogap.types import Sample


def trained_gap(samples: Sequence[Sample], old_log_probs: Sequence[np.ndarray]) -> dict[str, float]:
    """``gap/trained/*``: the trainer's log-probs minus the engine's within its kept set; {} if nothing was scored.

    Args:
        samples: of one step.
        old_log_probs: the trainer's own, before the token's update, aligned with each sample; NaN where the trainer did
            not score: tokens that do not train, or whose old log-prob is the engine's.
    """
    trainer, engine, kept = (
        np.concatenate([column.astype(np.float64) for column in columns])
        for columns in (
            old_log_probs,
            [sample.rollout_log_probs for sample in samples],
            [sample.kept_log_mass for sample in samples],
        )
    )
    is_scored = ~np.isnan(trainer) & ~np.isnan(engine)
    if not is_scored.any():
        return {}
    gap = gap_statistics(trainer, engine - kept, is_scored)
    return {
        "gap/trained/mean": gap.mean,
        "gap/trained/max": gap.max,
        "gap/trained/num_tokens": float(gap.num_tokens),
    }
