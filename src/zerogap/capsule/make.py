"""Makes a capsule of a step from the run's folder."""

from pathlib import Path

from rich.console import Console

from zerogap.audit import RecordedRun, Rewound, rewind
from zerogap.capsule.answer import Answer, compute_answer
from zerogap.capsule.file import Capsule, Embedded, Header, write_capsule
from zerogap.errors import CheckpointError
from zerogap.models import config_to_hf
from zerogap.obs import Progress
from zerogap.run.machine import apply_threads, describe_environment
from zerogap.weights import digest_weights, named_weights

_OPTIMIZER, _CRITICS_MASTERS, _BEFORE = "optimizer.", "critic.optimizer.master.", "before."


def make_capsule(
    run_dir: Path,
    out: Path,
    *,
    step: int | None = None,
    with_weights: bool = False,
    quiet: bool = False,
) -> Capsule:
    """Write the capsule of a step and return it.

    Weights of version 0 are the recipe's model, so digests are enough; later weights exist only in the run, so they are
    embedded.

    Args:
        run_dir: the run's folder; nothing in it changes.
        out: the file; replaced if it exists.
        step: recorded step; None: the last one.
        with_weights: embed weights of version 0 too.
        quiet: show no progress.

    Raises:
        CheckpointError: the folder lacks the step's rollouts or weights, or the step trained on no sample.
    """
    run, progress = RecordedRun(run_dir), Progress(Console(stderr=True), is_quiet=quiet)
    apply_threads(recorded=run.num_threads)
    step = run.choose_step(step)
    rewound, samples = rewind(run, step - 1, progress=progress), run.samples(step)
    if not run.trained(samples):
        msg = f"step {step} of {run_dir} trained on none of its {len(samples)} samples, so it has no loss and no gradient; choose another step"
        raise CheckpointError(msg)
    answer = compute_answer(
        rewound.trainer,
        samples,
        config=run.config,
        step=step,
        settings=run.settings(step),
        progress=progress,
    )
    policy, state = rewound.policy, rewound.trainer.state_dict()
    capsule = Capsule(
        header=_header(run, rewound, answer),
        config=run.config,
        environment=run.environment,
        metrics=run.metrics(step),
        samples=samples,
        trainer_state={name: t for name, t in state.items() if _is_needed(name)},
        policy=Embedded(weights=named_weights(policy.model), tokenizer=policy.tokenizer)
        if with_weights or rewound.version > 0
        else None,
    )
    write_capsule(out, capsule, rollouts=run.folder.rollouts(step))
    return capsule


def _is_needed(name: str) -> bool:
    """Whether a replay needs this entry of the trainer's state.

    Loss and gradient depend on no optimizer state, but a bf16 critic's weights load only with their fp32 masters.
    """
    if name.startswith(_BEFORE):
        return False
    return _OPTIMIZER not in name or name.startswith(_CRITICS_MASTERS)


def _header(run: RecordedRun, rewound: Rewound, answer: Answer) -> Header:
    model, step = rewound.policy.model, rewound.version + 1
    return Header(
        run=run.folder.path.resolve().name,
        step=step,
        weight_version=rewound.version,
        origin=rewound.origin,
        is_proven=rewound.is_proven,
        weight_digests=dict(digest_weights(named_weights(model)).tensors),
        architecture=config_to_hf(model.config),
        settings=run.settings(step),
        machine=describe_environment(),
        answer=answer,
    )
