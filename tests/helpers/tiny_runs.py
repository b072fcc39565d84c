"""Runs of recipes/tiny.toml, smaller: six steps in seconds."""

from pathlib import Path

from helpers.commands import zerogap
from zerogap.obs import read_jsonl

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
SMALL_MODEL = {
    "model.init.num_layers": "2",
    "model.init.hidden_size": "64",
    "model.init.intermediate_size": "128",
    "model.init.num_heads": "4",
}
SMALL = {
    **SMALL_MODEL,
    "rollout.prompts_per_step": "4",
    "rollout.group_size": "4",
    "evaluate.every": "2",
    "run.checkpoint_every": "2",
    "run.steps": "6",
    "train.warmup_steps": "1",
}
_TIMED = ("_s", "tokens_per_s", "peak_bytes")


def arguments(folder: Path, **overrides: str) -> list[str]:
    values = (
        SMALL | {"run.dir": str(folder)} | {k.replace("__", "."): v for k, v in overrides.items()}
    )
    flags = [part for key, value in values.items() for part in (f"--{key}", value)]
    return ["train", str(RECIPE), *flags]


def run(folder: Path, **overrides: str) -> str:
    """The output of the command."""
    done = zerogap(*arguments(folder, **overrides))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics(folder: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without the times."""
    lines = read_jsonl(folder / "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.endswith(_TIMED)} for line in lines]
