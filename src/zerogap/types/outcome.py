"""How a rollout ended."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a rollout ended; decides whether its reward counts.

    A failure never counts as reward 0: samples with an invalid outcome are excluded from the loss and from their
    group's mean and standard deviation, and counted under ``outcome/<kind>``.
    """

    COMPLETED = "completed"
    """The policy ended it."""
    TRUNCATED = "truncated"
    """The token limit ended it; it has a reward, and trains unless it was masked (``Sample.masked``)."""
    ABORTED = "aborted"
    """The engine was told to stop it."""
    ENVIRONMENT_FAILED = "environment_failed"
    VERIFIER_FAILED = "verifier_failed"
    """The reward function raised, timed out or returned a non-finite value."""
    INFRASTRUCTURE_FAILED = "infrastructure_failed"
    """The generator raised."""
    TAMPERED = "tampered"
    """Token ids are outside the tokenizer, or the sample contradicts itself."""

    @property
    def is_valid(self) -> bool:
        """Whether the sample's reward counts and its tokens may train."""
        return self in (Outcome.COMPLETED, Outcome.TRUNCATED)
