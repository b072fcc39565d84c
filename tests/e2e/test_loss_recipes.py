"""Every loss recipe runs: two steps of each on a small model, through the command that its first lines name."""

import math
from pathlib import Path

import pytest

from zerogap.cli import main
from zerogap.obs import read_jsonl
from zerogap.rollout import load_rollouts

pytestmark = pytest.mark.e2e

RECIPES = Path(__file__).parents[2] / "recipes"
LOSSES = sorted((RECIPES / "losses").glob("*.toml"))
COMPOSITIONS = sorted((RECIPES / "compositions").glob("*.toml"))
SMALL = {
    "rollout.prompts_per_step": "4",
    "model.init.num_layers": "2",
    "model.init.hidden_size": "64",
    "model.init.intermediate_size": "128",
    "model.init.num_heads": "4",
    "data.eval_size": "4",
    "evaluate.every": "2",
    "run.steps": "2",
    "train.warmup_steps": "1",
}


def run(kind: str, folder: Path, **overrides: str) -> list[dict]:
    """The lines of metrics.jsonl of a small run of the recipe."""
    values = SMALL | {"run.dir": str(folder)}
    values |= {key.replace("__", "."): value for key, value in overrides.items()}
    flags = [part for key, value in values.items() for part in (f"--{key}", value)]
    (recipe,) = (path for path in LOSSES + COMPOSITIONS if path.stem == kind)
    recipes = [str(RECIPES / "tiny.toml"), str(recipe)]
    assert main(["train", *recipes, *flags]) == 0
    return read_jsonl(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metrics of the sft recipe."""
    folder = tmp_path_factory.mktemp("teacher")
    run("sft", folder)
    return folder / "export"


def check_trained_exactly(lines: list[dict]) -> None:
    steps = [line for line in lines if line["step"] > 0]
    assert [line["step"] for line in steps] == [1, 2]
    for line in steps:
        assert math.isfinite(line["train/loss"])
        assert all(v == 0 for k, v in line.items() if k.startswith("gap/") and "/open/" in k)
    assert steps[-1]["train/grad_norm"] > 0


@pytest.mark.parametrize("recipe", LOSSES + COMPOSITIONS, ids=lambda path: path.stem)
def test_a_recipe_trains_for_two_steps_without_a_gap(recipe: Path, tmp_path: Path, teacher: Path):
    overrides = {
        "distillation": {"teacher__path": str(teacher)},
        # Its engine has a gap on purpose.
        "mipu": {"numerics": "exact", "engine__dtype": "fp32"},
    }
    check_trained_exactly(run(recipe.stem, tmp_path, **overrides.get(recipe.stem, {})))


def test_demonstrations_are_kept_like_rollouts(teacher: Path):
    samples = load_rollouts(teacher.parent / "rollouts" / "step_000002")
    assert len(samples) == 4
    assert all(s.is_demonstration and s.num_loss_tokens == 9 for s in samples)
