"""[watch]: when a run is said to collapse."""

from pydantic import Field

from zerogap.config.section import Section


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
