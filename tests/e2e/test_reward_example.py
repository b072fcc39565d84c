"""The example of custom rewards runs as the docs show it."""

from pathlib import Path

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tiny_runs import RECIPE as TINY
from helpers.tiny_runs import SMALL_MODEL
from helpers.tolerance import FLOAT64_SAME_OP

from zerogap.cli import main
from zerogap.obs import read_jsonl
from zerogap.rollout import load_rollouts

ROOT = Path(__file__).parents[2]
EXAMPLE, RECIPE = ROOT / "examples" / "rewards.py", ROOT / "examples" / "rewards.toml"
WEIGHTS = {"credit": 1.0, "letters": 0.2, "rarity": 0.1}
SMALL = {
    **SMALL_MODEL,
    "rollout.prompts_per_step": "4",
    "rollout.group_size": "4",
    "evaluate.every": "0",
    "run.steps": "2",
    "train.warmup_steps": "1",
}


@pytest.mark.e2e
def test_the_example_trains_and_records_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    flags = [f"--{key}={value}" for key, value in {**SMALL, "run.dir": str(tmp_path)}.items()]
    assert main(["train", str(TINY), str(RECIPE), *flags]) == 0
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    samples = load_rollouts(tmp_path / "rollouts" / "step_000002")
    assert len(samples) == 16
    for sample in samples:
        siblings = [s.text for s in samples if s.group_id == sample.group_id]
        FLOAT64_SAME_OP.check(sample.reward_parts["rarity"], siblings.count(sample.text) ** -0.5)
    rewards, parts = [s.reward for s in samples], [s.reward_parts for s in samples]

    def check_rewards(weights):
        FLOAT64_SAME_OP.check(rewards, [sum(weights[n] * p[n] for n in WEIGHTS) for p in parts])

    check_rewards(WEIGHTS)
    assert_notices("no weights", lambda: check_rewards(dict.fromkeys(WEIGHTS, 1.0)))
    means = {name: lines[-1][f"reward/{name}/mean"] for name in WEIGHTS}
    FLOAT64_SAME_OP.check(means, {n: float(np.mean([p[n] for p in parts])) for n in WEIGHTS})
    assert lines[-1]["train/grad_norm"] > 0
    assert "Parts of the reward" in (tmp_path / "report.html").read_text()


def test_the_docs_show_the_example_as_it_is():
    text = (ROOT / "docs" / "algorithms.md").read_text()
    code = EXAMPLE.read_text().split('"""', 2)[2].strip()
    recipe = RECIPE.read_text()
    assert f"```python\n{code}\n```" in text
    assert recipe[recipe.index("[reward]") :].strip() in text


def test_dry_run_prints_the_parts(capsys: pytest.CaptureFixture):
    assert main(["train", str(TINY), str(RECIPE), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    for name in WEIGHTS:
        assert f"[reward.parts.{name}]\nkind = " in printed
    assert "reward.parts.rarity.takes" in printed.split("# set by")[1]
