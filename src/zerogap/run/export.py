"""Exports a policy as a Hugging Face folder."""

from pathlib import Path

from zerogap.config import RunConfig
from zerogap.errors import CheckpointError
from zerogap.models import export_hf
from zerogap.run.checkpoint import WeightsPart, load_checkpoint
from zerogap.run.policy import Policy, load_policy
from zerogap.run_folder import RunFolder


def export_policy(policy: Policy, out: Path, *, replace: bool = True) -> None:
    """Write weights, configs and tokenizer files; the folder is complete or absent."""
    export_hf(
        policy.model,
        out,
        save_tokenizer=policy.tokenizer.save,
        generation=policy.generation,
        replace=replace,
    )


def export_run(run_dir: Path, out: Path) -> None:
    """Write the newest checkpoint of a run as a model folder; ``out`` must be absent or empty.

    Raises:
        CheckpointError: the folder holds no run, or the run has no checkpoint yet.
    """
    folder = RunFolder(run_dir)
    latest = folder.latest_checkpoint()
    if latest is None or not folder.config.exists():
        msg = f"{run_dir} holds no run with a checkpoint; give the folder of a run (run.dir) that has saved a checkpoint"
        raise CheckpointError(msg)
    config = RunConfig.model_validate_json(folder.config.read_text(encoding="utf-8"))
    policy = load_policy(config.model, seed=config.run.seed)
    load_checkpoint(latest, [WeightsPart(policy.model)])
    export_policy(policy, out, replace=False)
