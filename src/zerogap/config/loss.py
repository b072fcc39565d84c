"""[loss]: the objective. A union on ``kind``; each kind has only its own fields.

docs/algorithms.md has a row for each: formula, paper, when to use it, what it costs.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from zerogap.config.section import Section


class KLConfig(Section):
    """[loss.kl]: pull towards the policy the run started from."""

    kind: Literal["none", "k1", "k2", "k3"] = "none"
    """Estimator a token (http://joschu.net/blog/kl-approx.html); none keeps no reference model in memory."""
    coefficient: float = Field(0.0, ge=0)
    """Weight of the estimate."""
    place: Literal["loss", "reward"] = "loss"
    """loss: its mean is added to the loss, with gradient; reward: each token's estimate is taken off its reward, without."""

    def problems(self) -> Iterator[str]:
        """A coefficient without a kind, or the reverse."""
        if (self.kind == "none") != (self.coefficient == 0):
            yield f"kind = {self.kind!r}, coefficient = {self.coefficient}: one switches the penalty on and the other off; set both, or neither"


class Objective(Section):
    """What every kind of loss says about itself."""

    @property
    def trains_on_completions(self) -> bool:
        """Whether the engine samples what is trained on; otherwise the data set's answers are."""
        return True

    @property
    def compares_answers(self) -> bool:
        """Whether each prompt needs a worse answer beside its reference answer."""
        return False

    @property
    def compares_within_group(self) -> bool:
        """Whether the advantage of a completion needs others of the same prompt."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is kept in memory."""
        return False


class PolicyLoss(Objective):
    """What losses on sampled completions with rewards have in common."""

    kl: KLConfig = KLConfig()
    """Penalty on leaving the initial policy."""

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is kept in memory."""
        return self.kl.kind != "none"


class _WithinGroup(Objective):
    @property
    def compares_within_group(self) -> bool:
        """Whether the advantage of a completion needs others of the same prompt."""
        return True


class _ClippedLoss(PolicyLoss):
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Policy ratios below 1 - clip_low give no further gradient."""
    clip_high: float = Field(0.2, ge=0)
    """Policy ratios above 1 + clip_high give no further gradient."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound on the ratio where the advantage is negative; without it such a token's loss is unbounded."""


class GRPOLossConfig(_WithinGroup, _ClippedLoss):
    """PPO's clipped objective on advantages relative to the group (https://arxiv.org/abs/2402.03300)."""

    kind: Literal["grpo"] = "grpo"
    """Which objective."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation; false keeps reward minus group mean."""
    denominator: Literal["token", "record", "group", "rollout", "constant"] = "token"
    """What the summed token losses are divided by: all trainable tokens of the update; each record's (group's,
    rollout's) own, then the number of records (groups, rollouts); or the number of records times constant_denominator."""
    constant_denominator: int | None = Field(None, ge=1)
    """Tokens a record counts as, for denominator = "constant"."""

    def problems(self) -> Iterator[str]:
        """A constant denominator without the constant, or the reverse."""
        if (self.denominator == "constant") != (self.constant_denominator is not None):
            yield (
                f"denominator = {self.denominator!r}, constant_denominator = {self.constant_denominator}: the length belongs to denominator = "
                '"constant", and that one needs it; set both (rollout.sampling.max_new_tokens is the usual length), or neither'
            )


class DrGRPOLossConfig(_WithinGroup, _ClippedLoss):
    """GRPO without its two biases: no standard deviation, a constant denominator (https://arxiv.org/abs/2503.20783)."""

    kind: Literal["dr_grpo"]
    """Which objective."""
    constant_denominator: int = Field(ge=1)
    """Tokens a record counts as; rollout.sampling.max_new_tokens is the usual length."""


class DynamicSamplingConfig(Section):
    """[loss.dynamic_sampling]: draw further prompts until enough groups have a signal (DAPO, section 3.2)."""

    max_rounds: int = Field(4, ge=1)
    """Draws of a step at most; 1 keeps groups without a signal. With fewer groups than wanted after them, the step trains on what there is and says so."""


class OverlongConfig(Section):
    """[loss.overlong]: soft punishment of completions that near the token limit (DAPO, section 3.4)."""

    buffer_tokens: int = Field(ge=1)
    """Within so many tokens of rollout.sampling.max_new_tokens the penalty rises linearly from 0."""
    penalty: float = Field(1.0, gt=0)
    """Taken off the reward of a completion that reaches the limit."""


class DAPOLossConfig(_WithinGroup, _ClippedLoss):
    """Clip-higher, token denominator, dynamic sampling, overlong shaping (https://arxiv.org/abs/2503.14476)."""

    kind: Literal["dapo"]
    """Which objective."""
    clip_high: float = Field(0.28, ge=0)
    """Policy ratios above 1 + clip_high give no further gradient."""
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    """Draw again instead of training on groups whose rewards are all equal."""
    overlong: OverlongConfig | None = None
    """Punish completions near the limit; none: only what the reward function does."""


class GSPOLossConfig(_WithinGroup, PolicyLoss):
    """One ratio a record, the geometric mean of its tokens' (https://arxiv.org/abs/2507.18071)."""

    kind: Literal["gspo"]
    """Which objective."""
    clip_low: float = Field(3e-4, ge=0, lt=1)
    """Record ratios below 1 - clip_low give no further gradient."""
    clip_high: float = Field(4e-4, ge=0)
    """Record ratios above 1 + clip_high give no further gradient."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""


class CISPOLossConfig(_WithinGroup, PolicyLoss):
    """A clipped, detached policy ratio as weight of the log-prob (https://arxiv.org/abs/2506.13585)."""

    kind: Literal["cispo"]
    """Which objective."""
    ratio_low: float = Field(0.0, ge=0, lt=1)
    """Smallest weight; 0 is no bound."""
    ratio_high: float = Field(5.0, gt=1)
    """Largest weight. A token beyond it keeps its gradient, with this weight."""
    normalize_std: bool = True
    """Divide advantages by the group's standard deviation."""


class RLOOLossConfig(_WithinGroup, PolicyLoss):
    """REINFORCE with the mean reward of the other members as baseline (https://arxiv.org/abs/2402.14740)."""

    kind: Literal["rloo"]
    """Which objective."""


class ReinforcePlusPlusLossConfig(_ClippedLoss):
    """Returns normalised over the whole train batch instead of a group (https://arxiv.org/abs/2501.03262)."""

    kind: Literal["reinforce_pp"]
    """Which objective."""
    baseline: bool = False
    """Take the group's mean off the reward first ("REINFORCE++-baseline")."""

    @property
    def compares_within_group(self) -> bool:
        """Whether the advantage of a completion needs others of the same prompt."""
        return self.baseline


class CriticConfig(Section):
    """[loss.critic]: a second model with a value head, trained beside the policy."""

    learning_rate: float = Field(1e-5, gt=0)
    """Constant after train.warmup_steps."""
    value_clip: float = Field(0.2, ge=0)
    """Values may move this far from those at the start of the step before their gradient stops; 0: no limit."""
    warmup_steps: int = Field(0, ge=0)
    """First steps that train the critic alone."""


class PPOLossConfig(_ClippedLoss):
    """Clipped objective on advantages from a critic (https://arxiv.org/abs/1707.06347, https://arxiv.org/abs/1506.02438)."""

    kind: Literal["ppo"]
    """Which objective."""
    discount: float = Field(1.0, gt=0, le=1)
    """Of later rewards, per trainable token (gamma)."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Weight of longer advantage estimates (lambda)."""
    normalize_advantages: bool = True
    """Mean 0 and standard deviation 1 over the trainable tokens of the train batch."""
    critic: CriticConfig = CriticConfig()
    """The model of values."""


class DistillationLossConfig(Objective):
    """Follow a teacher on the policy's own completions (https://arxiv.org/abs/2306.13649)."""

    kind: Literal["distillation"]
    """Which objective."""
    teacher: str
    """The teacher's weights, named as in model.path; its tokenizer must be the policy's."""
    estimator: Literal["sampled", "top_k"] = "sampled"
    """sampled: the reverse KL of the drawn token is its (negative) advantage; top_k: a differentiable KL over the teacher's
    top_k ids, with the rest of the mass as one more."""
    top_k: int = Field(32, ge=1)
    """Ids a token, for estimator = "top_k"."""
    direction: Literal["reverse", "forward"] = "reverse"
    """For estimator = "top_k": KL(policy || teacher), or KL(teacher || policy)."""


class SFTLossConfig(Objective):
    """Cross-entropy on reference answers; nothing is sampled but for evaluation."""

    kind: Literal["sft"]
    """Which objective."""

    @property
    def trains_on_completions(self) -> bool:
        """Whether the engine samples what is trained on; otherwise the data set's answers are."""
        return False


class DPOLossConfig(Objective):
    """Prefer one answer to another, relative to the initial policy (https://arxiv.org/abs/2305.18290)."""

    kind: Literal["dpo"]
    """Which objective."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull towards the initial policy."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of preferences taken to be wrong (conservative DPO)."""

    @property
    def trains_on_completions(self) -> bool:
        """Whether the engine samples what is trained on; otherwise the data set's answers are."""
        return False

    @property
    def compares_answers(self) -> bool:
        """Whether each prompt needs a worse answer beside its reference answer."""
        return True

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
