"""What each kind of loss needs, known from the recipe alone: models, old log-probs, a denominator."""

from typing import Literal, TypeGuard

from zerogap.algorithms import Denominator
from zerogap.config.corrections import CorrectionsConfig
from zerogap.config.loss import (
    DistillationLossConfig,
    DrGRPOLossConfig,
    GRPOLossConfig,
    GSPOLossConfig,
    LossConfig,
    PolicyLoss,
)
from zerogap.errors import ConfigError
from zerogap.models import CausalLM
from zerogap.train.teacher import Teacher


def is_top_k(loss: LossConfig) -> TypeGuard[DistillationLossConfig]:
    """Whether the loss is a KL over several ids a token instead of a function of the drawn token's log-prob."""
    return isinstance(loss, DistillationLossConfig) and loss.estimator == "top_k"


def has_policy_ratio(loss: LossConfig) -> bool:
    """Whether the loss compares log-probs with those at the start of the step."""
    return loss.trains_on_completions and not is_top_k(loss)


def needs_old_first(loss: LossConfig, corrections: CorrectionsConfig) -> bool:
    """Whether all log-probs at the start of the step must be known before the first update's forward pass."""
    return (
        corrections.needs_old_log_probs or _has_kl_in(loss, "reward") or needs_teacher_scores(loss)
    )


def needs_teacher_scores(loss: LossConfig) -> bool:
    """Whether the teacher's log-probs of the drawn tokens must be known before the first update."""
    return isinstance(loss, DistillationLossConfig) and not is_top_k(loss)


def is_gradient_from_advantage(loss: LossConfig) -> bool:
    """Whether a sample whose advantages are all 0 has a gradient of exactly 0."""
    return has_policy_ratio(loss) and not _has_kl_in(loss, "loss")


def _has_kl_in(loss: LossConfig, place: Literal["loss", "reward"]) -> bool:
    return isinstance(loss, PolicyLoss) and loss.kl.kind != "none" and loss.kl.place == place


def denominator_of(loss: LossConfig) -> tuple[Denominator, int | None]:
    """Kind and constant for ``loss_denominators``.

    DPO is not here: it divides by its pairs.
    """
    match loss:
        case GRPOLossConfig():
            return loss.denominator, loss.constant_denominator
        case DrGRPOLossConfig():
            return "constant", loss.constant_denominator
        case GSPOLossConfig():
            return "sample", None
        case _:
            return "token", None


def check_models(loss: LossConfig, reference: CausalLM | None, teacher: Teacher | None) -> None:
    """Refuse a loss without the models that it needs, and models that nothing uses."""
    if (reference is not None) != loss.needs_reference:
        given = "no reference model" if reference is None else "a reference model"
        needs = "needs" if loss.needs_reference else "does not need"
        msg = f"this {loss.kind} loss {needs} the frozen initial policy, and {given} was given; a reference goes with a KL penalty or with dpo: give both or neither"
        raise ConfigError(msg)
    if (teacher is not None) != isinstance(loss, DistillationLossConfig):
        given = "no teacher" if teacher is None else "a teacher"
        msg = f"a {loss.kind} loss with {given}: only distillation has a teacher; give both or neither"
        raise ConfigError(msg)


def check_corrections(loss: LossConfig, corrections: CorrectionsConfig) -> None:
    """Refuse corrections that this loss cannot use."""
    if corrections != CorrectionsConfig() and not loss.trains_on_completions:
        msg = f"corrections with a {loss.kind} loss: it trains on the data set's answers, which no engine drew, so there is nothing to correct; leave them out"
        raise ConfigError(msg)
    if corrections.off_policy_kl is not None and is_top_k(loss):
        msg = f"corrections.off_policy_kl = {corrections.off_policy_kl} with top_k distillation: it drops samples of negative advantage, and a KL over several ids has no advantages; leave it out"
        raise ConfigError(msg)
