"""Which samples a step leaves out: of group statistics, denominators and the loss."""

from enum import StrEnum

from zerogap.types.sample import Sample


class Exclusion(StrEnum):
    """Why a sample is left out; each reason is counted."""

    INVALID_OUTCOME = "invalid_outcome"
    """It failed or was aborted, so it has no reward (``Sample.outcome`` says which)."""
    NO_LOSS_TOKENS = "no_loss_tokens"
    """None of its tokens trains, so its reward must not change its group's baseline."""


def exclusion_reason(sample: Sample) -> Exclusion | None:
    """Why ``sample`` is left out of the step; None if it is not."""
    if not sample.outcome.is_valid:
        return Exclusion.INVALID_OUTCOME
    if sample.num_loss_tokens == 0:
        return Exclusion.NO_LOSS_TOKENS
    return None
