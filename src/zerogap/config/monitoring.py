"""[ledger], [mismatch], [watch], [obs]: measuring the gap, reacting to it, alarms, and what is recorded."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from zerogap.section import Section


class LedgerConfig(Section):
    """How much the ledger audits. Each step chooses new samples; loss and corrections do not matter."""

    share: float = Field(0.01, gt=0, le=1)
    """Share of the sampled tokens to audit; 1 audits all."""
    min_samples: int = Field(4, ge=1)
    """Audit at least this many samples."""


Remedy = Literal["corrections", "staleness", "numerics"]


class MismatchConfig(Section):
    """While the audited gap stays above the budget, the run applies the allowed remedies one by one, then stops."""

    budget: float | None = Field(None, gt=0)
    """Upper limit for gap/total/mean, nats per token (0.01 is usual for two separate stacks in bf16); none: no limit."""
    patience: int = Field(3, ge=1)
    """Consecutive audited steps above the budget before the next remedy."""
    remedies: Annotated[tuple[Remedy, ...], Field(strict=False)] = (
        "corrections",
        "staleness",
        "numerics",
    )
    """Allowed remedies, always applied in this order: importance weights (for numbers, routing and staleness); one step less
    lag; exact numerics. None exists for sampling. When none is left, the run stops with an error that names the source."""

    def problems(self) -> Iterator[str]:
        """A remedy that is listed twice."""
        if len(set(self.remedies)) != len(self.remedies):
            yield f"remedies = {list(self.remedies)}: one remedy is listed twice; list each once"


class WatchConfig(Section):
    """Limits of the alarms. An alarm goes on after ``patience`` steps beyond its limit, and off after as many within 90 % of it."""

    stop: bool = False
    """Save a checkpoint and stop when an alarm goes on. The same command continues the run."""
    patience: int = Field(2, ge=1)
    """Consecutive steps; a value that is not finite alarms at once."""
    gap: float = Field(0.2, gt=0)
    """Upper limit for gap/total/mean, nats per token; 0.01 to 0.02 is usual for two separate stacks in bf16, 0.2 for wrong weights."""
    entropy_share: float = Field(0.2, gt=0, lt=1)
    """Lower limit for the entropy, as a share of its mean over the first five steps; a tenth of this while the reward is
    above the rewards of those steps."""
    grad_norm_ratio: float = Field(10.0, gt=1)
    """Upper limit for the gradient norm over its median of the last 20 steps; applies after five steps."""
    truncated_fraction: float = Field(0.5, gt=0, le=1)
    """Upper limit for the share of completions that the token limit ended. If the mean of the first five steps is
    already above it, the limit is 1.25 times that mean; a mean of 0.8 or more then never alarms."""
    no_signal_fraction: float = Field(0.95, gt=0, le=1)
    """Upper limit for the share of groups whose rewards are all equal."""
    failed_fraction: float = Field(0.1, gt=0, le=1)
    """Upper limit for the share of completions without a reward, because the reward function or something before it failed. They
    train nothing."""


class ObsConfig(Section):
    """What is recorded for people. Nothing here changes the run."""

    tensorboard: bool = False
    """Also write metrics for TensorBoard into the run's folder (needs the extra ``tensorboard``)."""
    rollouts_every: int = Field(1, ge=0)
    """Keep the rollouts of every this many steps on disk; 0 keeps none."""
    on_step: str | None = Field(None, pattern=r"^[\w.]+:\w+$")
    """Your own function, ``module:function``, importable from the working directory: called after each step as
    ``function(step, metrics, samples)`` with the step's metrics by name and the samples that it trained on. What it raises ends the run."""
