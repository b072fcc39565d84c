"""[loss]: the objective. ``LossConfig`` becomes a union on ``kind`` with the second objective."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from zerogap.config.section import Section


class KLConfig(Section):
    """[loss.kl]: pull towards the policy the run started from."""

    kind: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator a token (http://joschu.net/blog/kl-approx.html); none keeps no reference model in memory."""
    coefficient: float = Field(0.0, ge=0)
    """Weight of the mean estimate in the loss."""

    def problems(self) -> Iterator[str]:
        """A coefficient without a kind, or the reverse."""
        if (self.kind == "none") != (self.coefficient == 0):
            yield f"kind = {self.kind!r}, coefficient = {self.coefficient}: one switches the penalty on and the other off; set both, or neither"


class GRPOLossConfig(Section):
    """PPO's clipped objective on advantages relative to the group (https://arxiv.org/abs/2402.03300)."""

    kind: Literal["grpo"] = "grpo"
    """Which objective."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Policy ratios below 1 - clip_low give no further gradient."""
    clip_high: float = Field(0.2, ge=0)
    """Policy ratios above 1 + clip_high give no further gradient."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the ratio where the advantage is negative; without it such a token's loss is unbounded."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation; false keeps reward minus group mean (Dr. GRPO)."""
    denominator: Literal["token", "record", "constant"] = "token"
    """What the summed token losses are divided by: all trainable tokens of the update; each record's own, then the
    number of records; or the number of records times constant_denominator."""
    constant_denominator: int | None = Field(None, ge=1)
    """Tokens a record counts as, for denominator = "constant"."""
    kl: KLConfig = KLConfig()
    """Penalty on leaving the initial policy."""

    def problems(self) -> Iterator[str]:
        """A constant denominator without the constant, or the reverse."""
        if (self.denominator == "constant") != (self.constant_denominator is not None):
            yield (
                f"denominator = {self.denominator!r}, constant_denominator = {self.constant_denominator}: the length belongs to denominator = "
                '"constant", and that one needs it; set both (rollout.sampling.max_new_tokens is the usual length), or neither'
            )


LossConfig = GRPOLossConfig
