"""Which samples have no part in a step: not in group statistics, not in a denominator, not in the loss."""

from enum import StrEnum

from zerogap.types.sample import Sample


class Exclusion(StrEnum):
    """Why a sample is left out; counted, never silent."""

    INVALID_OUTCOME = "invalid_outcome"
    """It failed or was aborted, so it has no reward (``Sample.outcome`` says which)."""
    NO_LOSS_TOKENS = "no_loss_tokens"
    """Nothing in it trains, so its reward must not move its siblings' baseline."""


def exclusion_reason(sample: Sample) -> Exclusion | None:
    """Why ``sample`` is left out of the step; None if it takes part."""
    if not sample.outcome.is_valid:
        return Exclusion.INVALID_OUTCOME
    if sample.num_loss_tokens == 0:
        return Exclusion.NO_LOSS_TOKENS
    return None
