"""How a rollout ended."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a rollout ended; decides whether its reward may enter group statistics.

    A failure is never a reward: samples with an invalid outcome are excluded from the loss and from
    their group's mean and standard deviation, and counted under ``outcome/<kind>``.
    """

    COMPLETED = "completed"
    """The policy stopped by itself."""
    TRUNCATED = "truncated"
    """The token limit ended it; it has a reward and trains."""
    ABORTED = "aborted"
    """The engine was told to stop it."""
    ENVIRONMENT_FAILED = "environment_failed"
    VERIFIER_FAILED = "verifier_failed"
    """The reward function raised, timed out or gave no finite number."""
    INFRASTRUCTURE_FAILED = "infrastructure_failed"
    """The generator raised."""
    TAMPERED = "tampered"
    """Token ids outside the tokenizer, or a record that contradicts itself."""

    @property
    def is_valid(self) -> bool:
        """Whether the sample's reward counts and its tokens train."""
        return self in (Outcome.COMPLETED, Outcome.TRUNCATED)
