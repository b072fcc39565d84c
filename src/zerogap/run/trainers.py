"""Builds the trainer and the step settings of a recipe, for a run and for the commands that recompute its steps."""

from zerogap.config import ModelSection, RunConfig, reward_parts
from zerogap.errors import DataError, ModelError
from zerogap.kernels import Gemm
from zerogap.run.policy import Policy, load_policy
from zerogap.run.versions import StepSettings
from zerogap.train import NativeTrainer, Teacher


def build_trainer(config: RunConfig, policy: Policy, *, gemm: Gemm = "exact") -> NativeTrainer:
    """The recipe's trainer at step 0, with the frozen models that its algorithm needs."""
    algorithm, reference = config.algorithm, None
    if algorithm.kl.refresh is not None:
        # A run's policy is the initial one here, and whatever is loaded later has its reference beside it.
        reference = policy.model.copied(precision=config.model.dtype)
    elif algorithm.loads_reference:
        reference = load_policy(config.model, seed=config.run.seed).model
    return NativeTrainer(
        policy.model,
        config.train,
        algorithm,
        total_steps=config.run.steps,
        gemm=gemm,
        reference=reference,
        teacher=_build_teacher(config, policy) if algorithm.loads_teacher else None,
        reward_parts=reward_parts(config.reward),
    )


def _build_teacher(config: RunConfig, policy: Policy) -> Teacher:
    """A model of its own: that of ``teacher.path``, or a copy that follows the policy."""
    path = None if config.teacher is None else config.teacher.path
    if path is None:
        copy = policy.model.copied(precision=config.model.dtype)
        return Teacher(copy, vocab_limit=policy.vocab_limit)
    try:
        source = load_policy(ModelSection(path=path), seed=0)
    except (ModelError, DataError) as error:
        msg = f"teacher.path = {path!r} cannot be loaded: {error}"
        raise ModelError(msg) from error
    policy.tokenizer.check_same_ids(source.tokenizer, what=f"teacher.path = {path!r}")
    return Teacher(source.model, vocab_limit=policy.vocab_limit)


def settings_of_recipe(config: RunConfig) -> StepSettings:
    """The settings of a step if no GEMM was timed and no remedy applied."""
    return StepSettings(
        gemm="exact", is_exact=config.numerics == "exact", corrections=config.applied_corrections
    )


def exact_version(config: RunConfig, weight_version: int, settings: StepSettings) -> int | None:
    """``weight_version`` if its samples carry exactly the trainer's log-probs; None if that is not promised."""
    edits_logits = config.rollout.sampling.params().edits_logits
    return weight_version if settings.is_exact and not edits_logits else None
