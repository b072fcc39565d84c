"""A record on the ids that its text encodes to, as a sample that can be scored."""

from dataclasses import replace

import numpy as np

from zerogap.data import Reencoding
from zerogap.types import Sample, Source


def known_again(sample: Sample, again: Reencoding) -> np.ndarray:
    """Sampled tokens that encoding gives back, bool [T], behind at least one other token."""
    return (sample.weight_version >= 0) & (again.partner_T > 0)


def as_sample(sample: Sample, again: Reencoding) -> Sample:
    """The sampled tokens that come back, between whatever else the text encodes to; U tokens.

    Nothing in it trains. Log-probs and versions are those of the partners, so that scoring knows what to score.
    """
    is_known = known_again(sample, again)
    at = again.partner_T[is_known]
    num_tokens = len(again.token_ids)
    columns = {
        "source": np.full(num_tokens, Source.PROMPT),
        "rollout_log_probs": np.full(num_tokens, np.nan),
        "kept_log_mass": np.zeros(num_tokens),
        "weight_version": np.full(num_tokens, -1),
    }
    columns["source"][at] = Source.POLICY
    for name in ("rollout_log_probs", "kept_log_mass", "weight_version"):
        columns[name][at] = getattr(sample, name)[is_known]
    return replace(
        sample,
        token_ids=again.token_ids,
        loss_mask=np.zeros(num_tokens, bool),
        turns=(),
        **columns,
    )
