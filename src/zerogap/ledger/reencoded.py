"""A sample on its re-encoded ids, ready to be scored."""

from dataclasses import replace

import numpy as np

from zerogap.data import Reencoding
from zerogap.types import Sample


def known_again(sample: Sample, again: Reencoding) -> np.ndarray:
    """Sampled tokens whose id survives re-encoding, bool [T]; never the first token."""
    return (sample.weight_version >= 0) & (again.partner_T > 0)


def as_sample(sample: Sample, again: Reencoding) -> Sample:
    """The re-encoded sample, U tokens, in which only the surviving tokens count as sampled.

    Nothing in it trains, and it has no optional columns. Log-probs and versions come from the original tokens, so that the
    scorer knows what to score.
    """
    is_known = known_again(sample, again)
    at = again.partner_T[is_known]
    text = Sample.of_prompt(
        again.token_ids,
        group_id=sample.group_id,
        rollout_id=sample.rollout_id,
        temperature=sample.temperature,
    )
    columns = {}
    for name in ("source", "rollout_log_probs", "kept_log_mass", "weight_version"):
        columns[name] = getattr(text, name).copy()
        columns[name][at] = getattr(sample, name)[is_known]
    return replace(text, **columns)
