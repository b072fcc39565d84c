"""Which samples a step leaves out: of the loss, and of group statistics and denominators."""

from enum import StrEnum

from zerogap.types.outcome import Outcome
from zerogap.types.sample import Sample


class Exclusion(StrEnum):
    """Why a sample does not train; each reason is counted."""

    INVALID_OUTCOME = "invalid_outcome"
    """It failed or was aborted, so it has no reward (``Sample.outcome`` says which)."""
    NO_LOSS_TOKENS = "no_loss_tokens"
    """None of its tokens trains, so its reward must not change its group's baseline."""
    MASKED = "masked"
    """The token limit ended it and it was masked (``Sample.masked``): its tokens do not train, but its reward counts in its
    group's baseline, and the sample in every mean over samples."""


def exclusion_reason(sample: Sample) -> Exclusion | None:
    """Why ``sample`` does not train; None if it does."""
    if not sample.outcome.is_valid:
        return Exclusion.INVALID_OUTCOME
    if sample.num_loss_tokens > 0:
        return None
    is_masked = sample.outcome is Outcome.TRUNCATED and sample.reward is not None
    return Exclusion.MASKED if is_masked else Exclusion.NO_LOSS_TOKENS


def counts_in_group(sample: Sample) -> bool:
    """Whether the sample's reward counts in its group's baseline: it trains, or it was masked."""
    return exclusion_reason(sample) in (None, Exclusion.MASKED)
