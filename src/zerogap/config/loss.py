"""[loss]: the objective. A union on ``kind``; each kind has only its own fields.

docs/algorithms.md describes each: formula, paper, when to use it, and its cost.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from zerogap.config.section import Section


class KLConfig(Section):
    """[loss.kl]: a penalty on the KL to the initial policy."""

    kind: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator per token (http://joschu.net/blog/kl-approx.html); with none, no reference model is loaded."""
    coefficient: float = Field(0.0, ge=0)
    """Weight of the estimate."""
    place: Literal["loss", "reward"] = "loss"
    """loss: add the mean to the loss, with gradient; reward: subtract each token's estimate from its reward, without gradient."""

    def problems(self) -> Iterator[str]:
        """A coefficient without a kind, or the reverse."""
        if (self.kind == "none") != (self.coefficient == 0):
            yield f"kind = {self.kind!r}, coefficient = {self.coefficient}: a penalty needs both; set both, or neither"


class Objective(Section):
    """Properties of a kind of loss."""

    trains_on_completions: ClassVar[bool] = True
    """Whether it trains on sampled completions; otherwise on the data set's answers."""
    compares_answers: ClassVar[bool] = False
    """Whether each prompt needs a rejected answer beside its reference answer."""

    @property
    def compares_within_group(self) -> bool:
        """Whether the advantage of a completion depends on others of the same prompt."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is kept in memory."""
        return False


class PolicyLoss(Objective):
    """A loss on sampled completions with rewards."""

    kl: KLConfig = KLConfig()
    """Penalty on the KL to the initial policy."""

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is kept in memory."""
        return self.kl.kind != "none"


class _WithinGroup(Objective):
    @property
    def compares_within_group(self) -> bool:
        """Whether the advantage of a completion depends on others of the same prompt."""
        return True


class _ClippedLoss(PolicyLoss):
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Policy ratios below 1 - clip_low give no further gradient."""
    clip_high: float = Field(0.2, ge=0)
    """Policy ratios above 1 + clip_high give no further gradient."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the ratio where the advantage is negative; none: the loss of such a token is unbounded."""


class GRPOLossConfig(_WithinGroup, _ClippedLoss):
    """PPO's clipped objective on advantages relative to the group (https://arxiv.org/abs/2402.03300)."""

    kind: Literal["grpo"] = "grpo"
    """Which objective."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation; false keeps reward minus group mean."""
    denominator: Literal["token", "sample", "group", "rollout", "constant"] = "token"
    """What the sum of token losses is divided by. token: all trainable tokens of the update; sample, group, rollout: the
    tokens of each, then their number; constant: the number of samples times constant_denominator."""
    constant_denominator: int | None = Field(None, ge=1)
    """Tokens that each sample counts as, for denominator = "constant"."""

    def problems(self) -> Iterator[str]:
        """A constant denominator without the constant, or the reverse."""
        if (self.denominator == "constant") != (self.constant_denominator is not None):
            yield (
                f"denominator = {self.denominator!r}, constant_denominator = {self.constant_denominator}: only denominator = "
                '"constant" uses a length, and it needs one; set both (rollout.sampling.max_new_tokens is the usual length), or neither'
            )


class DrGRPOLossConfig(_WithinGroup, _ClippedLoss):
    """GRPO without its two biases: no standard deviation, a constant denominator (https://arxiv.org/abs/2503.20783)."""

    kind: Literal["dr_grpo"]
    """Which objective."""
    constant_denominator: int = Field(ge=1)
    """Tokens that each sample counts as; rollout.sampling.max_new_tokens is usual."""


class DAPOLossConfig(_WithinGroup, _ClippedLoss):
    """Clip-higher and a token denominator (https://arxiv.org/abs/2503.14476); its sampling is in [sampling_policy]."""

    kind: Literal["dapo"]
    """Which objective."""
    clip_high: float = Field(0.28, ge=0)
    """Policy ratios above 1 + clip_high give no further gradient."""


class GSPOLossConfig(_WithinGroup, PolicyLoss):
    """One ratio per sample, the geometric mean of its tokens' ratios (https://arxiv.org/abs/2507.18071)."""

    kind: Literal["gspo"]
    """Which objective."""
    clip_low: float = Field(3e-4, ge=0, lt=1)
    """Sample ratios below 1 - clip_low give no further gradient."""
    clip_high: float = Field(4e-4, ge=0)
    """Sample ratios above 1 + clip_high give no further gradient."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""


class CISPOLossConfig(_WithinGroup, PolicyLoss):
    """The log-prob, weighted by a clipped and detached policy ratio (https://arxiv.org/abs/2506.13585)."""

    kind: Literal["cispo"]
    """Which objective."""
    ratio_low: float = Field(0.0, ge=0, lt=1)
    """Smallest weight; 0 is no bound."""
    ratio_high: float = Field(5.0, gt=1)
    """Largest weight. A token beyond it keeps a gradient with this weight."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""


class RLOOLossConfig(_WithinGroup, PolicyLoss):
    """REINFORCE with the mean reward of the other members as baseline (https://arxiv.org/abs/2402.14740)."""

    kind: Literal["rloo"]
    """Which objective."""


class ReinforcePlusPlusLossConfig(_ClippedLoss):
    """Returns normalised over the whole train batch instead of the group (https://arxiv.org/abs/2501.03262)."""

    kind: Literal["reinforce_pp"]
    """Which objective."""
    baseline: bool = False
    """Subtract the group's mean from the reward first ("REINFORCE++-baseline")."""

    @property
    def compares_within_group(self) -> bool:
        """Whether the advantage of a completion depends on others of the same prompt."""
        return self.baseline


class CriticConfig(Section):
    """[loss.critic]: a second model with a value head, trained beside the policy."""

    learning_rate: float = Field(1e-5, gt=0)
    """Constant after train.warmup_steps."""
    value_clip: float = Field(0.2, ge=0)
    """A value gets no gradient once it has moved this far since the start of the step; 0: no limit."""
    warmup_steps: int = Field(0, ge=0)
    """Number of first steps that train only the critic."""


class PPOLossConfig(_ClippedLoss):
    """Clipped objective on advantages from a critic (https://arxiv.org/abs/1707.06347, https://arxiv.org/abs/1506.02438)."""

    kind: Literal["ppo"]
    """Which objective."""
    discount: float = Field(1.0, gt=0, le=1)
    """Discount per trainable token (gamma)."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Weight of longer advantage estimates (lambda); 1 uses the rewards alone."""
    normalize_advantages: bool = True
    """Normalise to mean 0 and standard deviation 1 over the trainable tokens of the train batch."""
    critic: CriticConfig = CriticConfig()
    """The value model."""


class DistillationLossConfig(Objective):
    """Distil a teacher on the policy's own completions (https://arxiv.org/abs/2306.13649)."""

    kind: Literal["distillation"]
    """Which objective."""
    teacher: str
    """The teacher's weights, given as in model.path; it must have the policy's tokenizer."""
    estimator: Literal["sampled", "top_k"] = "sampled"
    """sampled: the negative reverse KL at the sampled token is its advantage; top_k: a differentiable KL over the teacher's
    top_k ids and one bucket with the remaining mass."""
    top_k: int = Field(32, ge=1)
    """Number of ids per token, for estimator = "top_k"."""
    direction: Literal["reverse", "forward"] = "reverse"
    """For estimator = "top_k": KL(policy || teacher), or KL(teacher || policy)."""


class SFTLossConfig(Objective):
    """Cross-entropy on reference answers; only evaluation samples."""

    trains_on_completions = False
    kind: Literal["sft"]
    """Which objective."""


class DPOLossConfig(Objective):
    """Prefer the reference answer to a rejected one, relative to the initial policy (https://arxiv.org/abs/2305.18290)."""

    trains_on_completions = False
    compares_answers = True
    kind: Literal["dpo"]
    """Which objective."""
    beta: float = Field(0.1, gt=0)
    """Strength of the penalty on leaving the initial policy."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of preferences assumed to be wrong (conservative DPO)."""

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is kept in memory."""
        return True


LossConfig = Annotated[
    GRPOLossConfig
    | DrGRPOLossConfig
    | DAPOLossConfig
    | GSPOLossConfig
    | CISPOLossConfig
    | RLOOLossConfig
    | ReinforcePlusPlusLossConfig
    | PPOLossConfig
    | DistillationLossConfig
    | SFTLossConfig
    | DPOLossConfig,
    Field(discriminator="kind"),
]
