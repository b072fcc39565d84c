"""What a recipe makes of a model: its trainer, and how a step trains. For the run, and for whoever computes its steps again."""

from zerogap.config import DistillationLossConfig, LossConfig, ModelSection, RunConfig
from zerogap.errors import DataError, ModelError
from zerogap.kernels import Gemm
from zerogap.run.policy import Policy, load_policy
from zerogap.run.versions import StepSettings
from zerogap.train import NativeTrainer, Teacher


def build_trainer(config: RunConfig, policy: Policy, *, gemm: Gemm = "exact") -> NativeTrainer:
    """The recipe's trainer of the policy's model at step 0, with whatever frozen models its loss needs."""
    reference = None
    if config.loss.needs_reference:
        reference = load_policy(config.model, seed=config.run.seed).model
    return NativeTrainer(
        policy.model,
        config.train,
        config.loss,
        total_steps=config.run.steps,
        gemm=gemm,
        corrections=config.corrections,
        reference=reference,
        teacher=_load_teacher(config.loss, policy),
    )


def _load_teacher(loss: LossConfig, policy: Policy) -> Teacher | None:
    if not isinstance(loss, DistillationLossConfig):
        return None
    try:
        source = load_policy(ModelSection(path=loss.teacher), seed=0)
    except (ModelError, DataError) as error:
        msg = f"loss.teacher = {loss.teacher!r} cannot be loaded: {error}"
        raise ModelError(msg) from error
    policy.tokenizer.check_same_ids(source.tokenizer, what=f"loss.teacher = {loss.teacher!r}")
    return Teacher(source.model, vocab_limit=policy.vocab_limit)


def settings_of_recipe(config: RunConfig) -> StepSettings:
    """How a step trains while nothing was timed and no remedy taken."""
    return StepSettings(
        gemm="exact", is_exact=config.numerics == "exact", corrections=config.corrections
    )


def exact_version(config: RunConfig, weight_version: int, settings: StepSettings) -> int | None:
    """``weight_version``, if samples of it carry the trainer's own log-probs to the bit; None where nobody promises it."""
    edits_logits = config.rollout.sampling.params().edits_logits
    return weight_version if settings.is_exact and not edits_logits else None
