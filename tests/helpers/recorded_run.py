"""A run of the tiny recipe, small enough to be made in a test: a folder with everything a run leaves."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from zerogap.config.load import load_config
from zerogap.run import train

_RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
_SMALL = {
    "rollout.prompts_per_step": "3",
    "rollout.group_size": "4",
    "model.init.num_layers": "2",
    "model.init.hidden_size": "32",
    "model.init.intermediate_size": "64",
    "model.init.num_heads": "2",
    "model.init.num_kv_heads": "1",
    "model.init.head_dim": "16",
    "engine.kv_cache_tokens": "2048",
    "engine.max_running": "16",
    "evaluate.every": "0",
    "train.warmup_steps": "0",
    "run.checkpoint_every": "1",
    "run.keep_checkpoints": "10",
}


def make_run(folder: Path, *, steps: int, **settings: str) -> Path:
    """Train; ``settings`` are recipe keys with ``__`` for the dot. Every step has a checkpoint and its rollouts."""
    given: Mapping[str, str] = {k.replace("__", "."): v for k, v in settings.items()}
    values = _SMALL | {"run.dir": str(folder), "run.steps": str(steps)} | given
    flags = [part for key, value in values.items() for part in (f"--{key}", value)]
    train(load_config([_RECIPE], flags).config, quiet=True)
    return folder


def copy_without(run: Path, to: Path, *removed: str) -> Path:
    """A copy of a run's folder without some of its files or folders."""
    shutil.copytree(run, to)
    for name in removed:
        path = to / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return to


def change_column(run: Path, step: int, name: str, change: Callable[[np.ndarray], None]) -> None:
    """Edit a column of a step's rollouts on disk, in place; it is [sum T] over all samples."""
    path = run / "rollouts" / f"step_{step:06d}" / "columns.safetensors"
    columns = load_file(path)
    change(columns[name])
    save_file(columns, path)
