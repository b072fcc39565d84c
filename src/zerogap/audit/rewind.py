"""Recomputes the weights that a recorded step started from, from the run's folder alone.

Training is deterministic to the bit: the same samples, weights and optimizer state give the same weights, on the same
kind of machine with the same number of threads. So any version can be recomputed from the newest checkpoint before it (or
the recipe's initial model) by training on the recorded rollouts of the steps in between, without the engine. Each
version's fingerprint is compared with the recorded one.
"""

from dataclasses import dataclass

from zerogap.audit.recorded import RecordedRun
from zerogap.errors import CheckpointError
from zerogap.obs import Progress
from zerogap.run.checkpoint import WeightsPart, load_checkpoint
from zerogap.run.machine import (
    code_differences,
    describe_environment,
    machine_differences,
    return_free_memory,
)
from zerogap.run.policy import Policy, load_policy
from zerogap.run.progress import show_training
from zerogap.run.trainers import build_trainer, exact_version
from zerogap.train import NativeTrainer
from zerogap.weights import WeightHistory, weight_fingerprint


@dataclass(frozen=True, kw_only=True)
class Rewound:
    """A run's policy and trainer after ``version`` steps."""

    policy: Policy
    trainer: NativeTrainer
    version: int
    is_proven: bool
    """Whether the weights are known to be the run's: they have the recorded fingerprint, or come from a checkpoint."""
    origin: str
    """Where the weights come from, for people."""
    history: WeightHistory | None
    """The requested older versions, as far as they could be recomputed."""


def rewind(
    run: RecordedRun, version: int, *, older: frozenset[int] = frozenset(), progress: Progress
) -> Rewound:
    """Policy and trainer after ``version`` steps.

    Args:
        run: the run; its folder does not change.
        version: weight version; step N starts from version N - 1.
        older: further versions to keep, if the folder has what they need.
        progress: shows each step as it is retrained.

    Raises:
        CheckpointError: rollouts are missing, or a fingerprint differs from the recorded one.
    """
    if missing := run.missing_for(version):
        msg = f"version {version} of {run.folder.path} cannot be recomputed from version {run.start_of(version)}: the rollouts of steps {missing} are not on disk; choose a version before them"
        raise CheckpointError(msg)
    start = _start_for(run, version, older)
    history = WeightHistory(len(older)) if older else None
    with progress.phase("loading the model"):
        policy, trainer = _load(run, start)
    _prove(run, policy, start)
    for step in range(start + 1, version + 1):
        if history is not None and step - 1 in older:
            history.remember(step - 1, policy.model)
        _train_again(run, trainer, step, last=version, progress=progress)
        _prove(run, policy, step)
    return Rewound(
        policy=policy,
        trainer=trainer,
        version=version,
        is_proven=version in run.versions or version in run.checkpoints,
        origin=_describe(start, version, has_checkpoint=start in run.checkpoints),
        history=history,
    )


def _start_for(run: RecordedRun, version: int, older: frozenset[int]) -> int:
    """The newest version from which all requested versions that the folder allows can be recomputed."""
    reachable = [
        v for v in older | {version} if not run.missing_for(version, after=run.start_of(v))
    ]
    return min(run.start_of(v) for v in reachable)


def _load(run: RecordedRun, version: int) -> tuple[Policy, NativeTrainer]:
    policy = load_policy(run.config.model, seed=run.config.run.seed)
    if run.config.numerics == "exact":
        policy.probe()  # decides which GEMM tiles are used, as in the run
    trainer = build_trainer(run.config, policy)
    if version in run.checkpoints:
        load_checkpoint(run.checkpoints[version], [WeightsPart(policy.model), trainer])
    return policy, trainer


def _train_again(
    run: RecordedRun, trainer: NativeTrainer, step: int, *, last: int, progress: Progress
) -> None:
    samples = run.samples(step)
    if not run.trained(samples):
        return
    settings = run.settings(step)
    trainer.use_corrections(settings.corrections)
    trainer.use_gemm(settings.gemm)
    with progress.phase(f"retraining step {step} of {last}", unit="rows") as phase:
        show = show_training(phase)
        known = exact_version(run.config, step - 1, settings)
        plan = trainer.plan(samples, exact_version=known, on_progress=show)
        if plan.undoes:
            trainer.undo(plan)
        else:
            trainer.step(plan, on_progress=show)
    return_free_memory()


def _prove(run: RecordedRun, policy: Policy, version: int) -> None:
    if version not in run.versions:
        return
    found, recorded = weight_fingerprint(policy.model), run.versions[version].fingerprint
    if found == recorded:
        return
    if version == run.start_of(version):
        cause = "the model is not the one that the run started from"
        cure = "restore the original files at model.path"
    else:
        cause = f"retraining step {version} gave different weights ({_what_changed(run)})"
        cure = "audit on the machine of the run, or choose a step right after a checkpoint"
    msg = f"version {version} of {run.folder.path} has the fingerprint {found}, but the run recorded {recorded}: {cause}; {cure}"
    raise CheckpointError(msg)


def _what_changed(run: RecordedRun) -> str:
    """Differences between this machine and the run's that can change bits."""
    here, then = describe_environment(), run.environment
    differ = [*machine_differences(then, here), *code_differences(then, here)]
    return (
        "; ".join(differ)
        or "machine and code are the same, so the rollouts on disk are not what it trained on"
    )


def _describe(start: int, version: int, *, has_checkpoint: bool) -> str:
    source = f"the checkpoint of step {start}" if has_checkpoint else "the recipe's initial model"
    if start == version:
        return source
    steps = f"step {version}" if version == start + 1 else f"steps {start + 1} to {version}"
    return f"{source}, retrained on the rollouts of {steps}"
