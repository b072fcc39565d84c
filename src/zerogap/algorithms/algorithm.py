"""The tables of a recipe that make an algorithm, and what they need together."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from pydantic import Field

from zerogap.algorithms.acceptance import AcceptanceConfig
from zerogap.algorithms.advantages import AdvantageConfig, AnyAdvantage, GroupAdvantage, NoAdvantage
from zerogap.algorithms.advantages.critic import CriticAdvantage
from zerogap.algorithms.advantages.token_baseline import TokenBaselineAdvantage
from zerogap.algorithms.corrections import CorrectionsConfig
from zerogap.algorithms.denominators import Denominator
from zerogap.algorithms.kl import KLConfig
from zerogap.algorithms.losses import ClipLoss, DPOLoss, Loss, LossConfig, PolicyLoss
from zerogap.algorithms.presets import presets
from zerogap.algorithms.teacher import TeacherConfig
from zerogap.errors import ConfigError
from zerogap.section import Section


class EntropyConfig(Section):
    """[entropy]: the entropy of the policy's next-token distribution in the loss."""

    coefficient: float = 0.0
    """Weight of the mean entropy that is subtracted from the loss (nats); positive keeps the policy exploring, 0 is off."""
    top_quantile: float = Field(1.0, gt=0, le=1)
    """Share of the train batch's tokens, those with the highest entropy at the start of the step, that have the loss's own term
    (https://arxiv.org/abs/2506.01939; 0.2 there); the others count in the denominator. 1: all. Costs a forward pass."""


@runtime_checkable
class AlgorithmTables(Protocol):
    """What has the tables: an ``Algorithm``, or a whole recipe."""

    @property
    def loss(self) -> Loss: ...  # noqa: D102
    @property
    def advantage(self) -> AdvantageConfig: ...  # noqa: D102
    @property
    def kl(self) -> KLConfig: ...  # noqa: D102
    @property
    def entropy(self) -> EntropyConfig: ...  # noqa: D102
    @property
    def teacher(self) -> TeacherConfig | None: ...  # noqa: D102
    @property
    def corrections(self) -> CorrectionsConfig: ...  # noqa: D102
    @property
    def acceptance(self) -> AcceptanceConfig | None: ...  # noqa: D102


class Algorithm(Section):
    """Everything that decides a step's gradient beside the samples and the weights."""

    loss: LossConfig = ClipLoss()
    """Objective."""
    advantage: AnyAdvantage = GroupAdvantage()
    """What a token is worth."""
    kl: KLConfig = KLConfig()
    """Penalty on the distance from a reference policy."""
    entropy: EntropyConfig = EntropyConfig()
    """Entropy in the loss."""
    teacher: TeacherConfig | None = None
    """Distillation."""
    corrections: CorrectionsConfig = CorrectionsConfig()
    """Importance weights and rejection."""
    acceptance: AcceptanceConfig | None = None
    """Undo updates that cost the engine's policy too much; none: every update stays."""

    @classmethod
    def of(cls, tables: AlgorithmTables) -> "Algorithm":
        """The algorithm of a recipe."""
        return cls(**{name: getattr(tables, name) for name in cls.model_fields})

    @classmethod
    def preset(cls, name: str, **tables: Mapping[str, Any]) -> "Algorithm":
        """A published algorithm, changed by the given tables: ``Algorithm.preset("gspo", loss={"clip_low": 1e-3})``.

        The preset's other tables (``sampling_policy``) are the run's and not part of an ``Algorithm``.

        Raises:
            ConfigError: there is no such preset.
            ValidationError: a table has unknown keys or wrong values.
        """
        if (found := presets().get(name)) is None:
            msg = f"{name!r}: no such preset; the presets are {', '.join(presets())}"
            raise ConfigError(msg)
        own = {table: keys for table, keys in found.items() if table in cls.model_fields}
        for table, keys in tables.items():
            is_another = "kind" in keys and keys["kind"] != own.get(table, {}).get("kind")
            own[table] = dict(keys) if is_another else {**own.get(table, {}), **keys}
        return cls.model_validate(own)

    def problems(self) -> Iterator[str]:
        """Tables that exclude each other."""
        return algorithm_problems(self)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference is kept in memory: the initial policy, or an older one."""
        return self.kl.is_on or self.loss.needs_reference

    @property
    def loads_reference(self) -> bool:
        """Whether the initial policy must be loaded for it: a reference that moves is part of the trainer's state."""
        return self.needs_reference and self.kl.refresh is None

    @property
    def critic(self) -> CriticAdvantage | None:
        """The advantage's critic, if it has one."""
        return self.advantage if isinstance(self.advantage, CriticAdvantage) else None

    @property
    def loads_teacher(self) -> bool:
        """Whether the teacher is a model beside the policy."""
        return self.teacher is not None and not self.teacher.is_policy

    @property
    def has_hints(self) -> bool:
        """Whether the teacher reads another prompt than the policy."""
        return self.teacher is not None and self.teacher.hint is not None

    @property
    def is_top_k(self) -> bool:
        """Whether the loss has a KL over several ids a token."""
        return self.teacher is not None and self.teacher.is_top_k

    @property
    def needs_teacher_scores(self) -> bool:
        """Whether the teacher's log-probs of the drawn tokens must be known before the first update."""
        return self.teacher is not None and not self.teacher.is_top_k

    @property
    def needs_statistics(self) -> bool:
        """Whether more than the log-probs of the policy's distributions must be known before the first update."""
        return isinstance(self.advantage, TokenBaselineAdvantage) or self.entropy.top_quantile < 1

    @property
    def has_policy_ratio(self) -> bool:
        """Whether the loss compares log-probs with those at the start of the step."""
        return self.loss.trains_on_completions and (
            self.advantage.uses_rewards or self.needs_teacher_scores or self.kl.is_in_loss
        )

    @property
    def needs_old_first(self) -> bool:
        """Whether all log-probs at the start of the step must be known before the first update's forward pass."""
        return self.loss.trains_on_completions and (
            self.corrections.needs_old_log_probs
            or self.acceptance is not None
            or self.kl.is_in_reward
            or self.needs_teacher_scores
            or self.advantage.needs_old_log_probs
        )

    @property
    def is_gradient_from_advantage(self) -> bool:
        """Whether a sample whose advantages are all 0 has a gradient of exactly 0."""
        has_other_terms = self.kl.is_in_loss or self.entropy.coefficient != 0 or self.is_top_k
        return self.loss.trains_on_completions and not has_other_terms

    @property
    def denominator(self) -> tuple[Denominator, int | None]:
        """Kind and constant for ``loss_denominators``; dpo divides by its pairs instead."""
        if isinstance(self.loss, PolicyLoss):
            return self.loss.denominator, self.loss.constant_denominator
        return "token", None


def algorithm_problems(tables: AlgorithmTables) -> Iterator[str]:
    """Tables that are valid alone but impossible together, each as ``key = value: why; what to do``."""
    loss, teacher = tables.loss, tables.teacher
    if not loss.trains_on_completions:
        kind = f"loss.kind = {loss.kind!r} trains on the data set's answers"
        if tables.corrections != CorrectionsConfig():
            yield f"corrections: {kind}, which no engine sampled, so there is nothing to correct; remove the table"
        if tables.advantage != GroupAdvantage():
            yield f"advantage: {kind}, which have no rewards to compare; remove the table"
        if tables.kl.is_on:
            yield f"kl: {kind}, and the KL's estimate needs tokens that the policy drew; remove the table"
        if tables.entropy.top_quantile != 1:
            yield f"entropy.top_quantile = {tables.entropy.top_quantile}: {kind}, and the quantile is of tokens that the policy drew; remove the key"
        if tables.entropy.coefficient and isinstance(loss, DPOLoss):
            yield f"entropy.coefficient = {tables.entropy.coefficient}: loss.kind = 'dpo' divides by its pairs, so a mean entropy of tokens has no denominator; remove the table"
        if tables.acceptance is not None:
            yield f"acceptance: {kind}, which no engine sampled, so there is no gap to judge an update by; remove the table"
        if teacher is not None:
            yield f"teacher: {kind}, and the teacher scores the policy's own completions; remove the table"
        return
    if loss.compares_with_engine and tables.corrections.weight is not None:
        yield f"corrections.weight: loss.kind = {loss.kind!r} compares with the engine's log-probs itself, so weights would count the gap twice; remove the table, or choose another loss"
    if isinstance(tables.advantage, NoAdvantage) and teacher is None:
        yield 'advantage.kind = "none": rewards train nothing and there is no teacher, so there is no gradient; choose another advantage, or add [teacher]'
    if tables.kl.is_in_reward and not tables.advantage.uses_rewards:
        yield 'kl.place = "reward": the penalty is subtracted from rewards, and with advantage.kind = "none" these train nothing; set kl.place = "loss"'
    if tables.corrections.off_policy_kl is not None and not tables.advantage.uses_rewards:
        yield f'corrections.off_policy_kl = {tables.corrections.off_policy_kl}: it drops samples of negative advantage, and with advantage.kind = "none" a sample has none; remove the key'
