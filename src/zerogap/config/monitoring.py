"""[ledger], [mismatch], [watch], [obs]: what is measured, what a run may do about it, and what is written down."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from zerogap.config.section import Section


class LedgerConfig(Section):
    """Audited records are chosen anew each step, whatever the loss, the corrections or the old log-probs are."""

    share: float = Field(0.01, gt=0, le=1)
    """Share of the sampled tokens that is audited; 1 audits all."""
    min_records: int = Field(4, ge=1)
    """Audited records at least, however few tokens they have."""


Remedy = Literal["corrections", "staleness", "numerics"]


class MismatchConfig(Section):
    """While the audited gap stays above the budget, the run takes one allowed remedy after the other, and then stops."""

    budget: float | None = Field(None, gt=0)
    """Most nats a token of gap/total/mean (0.01 is usual for two separate stacks in bf16); none: measured only."""
    patience: int = Field(3, ge=1)
    """Steps in a row above the budget before the next remedy is taken."""
    remedies: Annotated[tuple[Remedy, ...], Field(strict=False)] = (
        "corrections",
        "staleness",
        "numerics",
    )
    """What may be done, always in this order: switch on importance weights; sample with weights one step younger;
    take exact numerics. When none is left, the run stops with an error that names the source."""

    def problems(self) -> Iterator[str]:
        """One remedy twice."""
        if len(set(self.remedies)) != len(self.remedies):
            yield f"remedies = {list(self.remedies)}: one of them is named twice; name each once"


class WatchConfig(Section):
    """Limits of the alarms: on after ``patience`` steps beyond one, off after as many within nine tenths of it."""

    stop: bool = False
    """Save a checkpoint and stop when an alarm goes on; the same command goes on from there."""
    patience: int = Field(2, ge=1)
    """Steps in a row (a number that is not finite alarms at once)."""
    gap: float = Field(0.2, gt=0)
    """Nats a token of gap/total/mean; 0.01 to 0.02 is usual for two separate stacks in bf16, 0.2 for wrong weights."""
    entropy_share: float = Field(0.2, gt=0, lt=1)
    """Of the mean entropy of the first five steps; less is a collapse. A tenth of it while the reward is above that of those steps."""
    grad_norm_ratio: float = Field(10.0, gt=1)
    """Gradient norm over the median of the last 20 steps, once there are five."""
    truncated_fraction: float = Field(0.5, gt=0, le=1)
    """Share of completions that the token limit ended. A run whose first five steps are beyond it alarms when their mean
    share rises by a quarter, which from 0.8 on it cannot."""
    no_signal_fraction: float = Field(0.95, gt=0, le=1)
    """Share of groups whose rewards are all equal."""


class ObsConfig(Section):
    """Records for people; none of them changes the run."""

    tensorboard: bool = False
    """Write metrics for TensorBoard into the run's folder as well (needs the extra ``tensorboard``)."""
    rollouts_every: int = Field(1, ge=0)
    """Keep the rollouts of every so many steps on disk; 0 keeps none."""
