"""Exports a policy as a Hugging Face folder."""

from pathlib import Path

from zerogap.config import RunConfig
from zerogap.errors import CheckpointError
from zerogap.models import export_hf
from zerogap.obs import read_jsonl
from zerogap.run.checkpoint import WeightsPart, load_checkpoint
from zerogap.run.model_card import FILE_NAME, model_card
from zerogap.run.policy import Policy, load_policy
from zerogap.run_folder import RunFolder, checkpoint_name, list_checkpoints, step_of

_BEST = "eval/reward/mean"


def export_policy(
    policy: Policy, out: Path, *, card: str | None = None, replace: bool = True
) -> None:
    """Write weights, configs, tokenizer files and the model card; the folder is complete or absent."""

    def save_others(folder: Path) -> None:
        policy.tokenizer.save(folder)
        if card is not None:
            (folder / FILE_NAME).write_text(card, encoding="utf-8")

    export_hf(
        policy.model, out, save_tokenizer=save_others, generation=policy.generation, replace=replace
    )


def export_run(run_dir: Path, out: Path, *, step: int | None = None, best: bool = False) -> int:
    """Write a checkpoint of a run as a model folder; returns its step.

    Args:
        run_dir: the run's folder.
        out: absent or empty.
        step: of the checkpoint; None: the newest.
        best: the checkpoint with the highest mean reward of greedy evaluation, the newest of equal ones; without ``step``.

    Raises:
        CheckpointError: the folder holds no run, it has no such checkpoint, or none of its checkpoints was evaluated.
    """
    folder = RunFolder(run_dir)
    if folder.latest_checkpoint() is None or not folder.config.exists():
        msg = f"{run_dir} holds no run with a checkpoint; give the folder of a run (run.dir) that has saved a checkpoint"
        raise CheckpointError(msg)
    path = _best(folder) if best else _of_step(folder, step)
    config = RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8"))
    policy = load_policy(config.model, seed=config.run.seed)
    found = load_checkpoint(path, [WeightsPart(policy.model)])
    export_policy(policy, out, card=model_card(config, folder, step=found), replace=False)
    return found


def _of_step(folder: RunFolder, step: int | None) -> Path:
    kept = list_checkpoints(folder.checkpoints)
    if step is None:
        return kept[-1]
    if (path := folder.checkpoint(step)) not in kept:
        msg = f"{folder.path} has no checkpoint of step {step}, only {_steps(kept)}; give one of these (run.checkpoint_every and run.keep_checkpoints decide which are kept)"
        raise CheckpointError(msg)
    return path


def _best(folder: RunFolder) -> Path:
    kept = {path.name: path for path in list_checkpoints(folder.checkpoints)}
    lines = read_jsonl(folder.metrics) if folder.metrics.exists() else []
    found = [
        (line[_BEST], line["step"], kept[name])
        for line in lines
        if _BEST in line and (name := checkpoint_name(line["step"])) in kept
    ]
    if not found:
        msg = f"{folder.path}: none of its checkpoints ({_steps(list(kept.values()))}) was evaluated, so none is known to be the best; give --step, or evaluate at the steps that are saved (evaluate.every, run.checkpoint_every)"
        raise CheckpointError(msg)
    return max(found, key=lambda entry: entry[:2])[2]


def _steps(checkpoints: list[Path]) -> str:
    return ", ".join(str(step_of(path)) for path in checkpoints)
