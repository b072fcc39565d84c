"""A run whose rewards fail says so, and one whose rewards all fail from the start ends with an error."""

import json

import pytest
from helpers.commands import zerogap
from helpers.tiny_runs import RECIPE, SMALL_MODEL

from zerogap.obs import read_jsonl

SMALL = {
    **SMALL_MODEL,
    "rollout.prompts_per_step": "2",
    "rollout.group_size": "4",
    "data.eval_size": "2",
    "evaluate.every": "0",
    "run.steps": "3",
    "train.warmup_steps": "1",
    "reward.kind": "import",
}


def run(folder, function, **changes):
    keys = {**SMALL, "run.dir": str(folder), "reward.function": f"helpers.reward_functions:{function}", **changes}  # fmt: skip
    return zerogap("train", RECIPE, *(f"--{key}={value}" for key, value in keys.items()))


@pytest.mark.e2e
def test_a_first_step_without_any_reward_ends_the_run_and_is_kept_for_a_look(tmp_path):
    ended = run(tmp_path, "always_raises")
    assert ended.returncode == 2
    assert "step 1: none of 8 completions got a reward" in ended.stderr
    assert "8 times: ValueError: cannot read " in ended.stderr
    assert "(reward_functions.py, line " in ended.stderr
    assert not (tmp_path / "export").exists()
    assert not (tmp_path / "checkpoints").exists()
    lines = (tmp_path / "rollouts" / "step_000001" / "samples.jsonl").read_text().splitlines()
    assert {json.loads(line)["outcome"] for line in lines} == {"verifier_failed"}
    assert (tmp_path / "report.html").exists()
    evaluated = run(tmp_path / "evaluated", "always_raises", **{"evaluate.every": "1"})
    assert evaluated.returncode == 2
    assert "evaluation at step 0: none of 2 completions got a reward" in evaluated.stderr


@pytest.mark.e2e
@pytest.mark.slow
def test_some_failing_rewards_are_told_once_and_raise_an_alarm(tmp_path):
    done = run(tmp_path, "fails_once_in_a_group")
    assert done.returncode == 0
    told = [line for line in done.stdout.splitlines() if line.startswith("warning: step")]
    assert len(told) == 1
    assert r"step 1: no reward for 2 of 8 completions: ValueError: price \ud83d of" in told[0]
    assert "has zerogap's (completion, item, sample)" in done.stdout
    lines = read_jsonl(tmp_path / "metrics.jsonl")
    assert [line["rollout/failed_fraction"] for line in lines] == [0.25] * 3
    assert [line["alarm/failures"] for line in lines] == [0, 1, 1]
    assert "alarm failures: completions get no reward" in done.stdout
    # Rewards of 1e-300 are drawn, too.
    assert "failures" in (tmp_path / "report.html").read_text()
    model = str(tmp_path / "export")
    flags = ["--data.eval_size=2", "--reward.kind=import"]
    function = "--reward.function=helpers.reward_functions:"
    refused = zerogap("eval", model, RECIPE, *flags, f"{function}always_raises")
    assert refused.returncode == 2
    assert "evaluation: none of 2 completions got a reward" in refused.stderr


@pytest.mark.e2e
def test_a_function_that_no_convention_knows_is_refused_before_the_model_is_looked_for(tmp_path):
    refused = run(tmp_path, "other_names", **{"model.tokenizer": str(tmp_path / "none")})
    assert refused.returncode == 2
    assert "declared as (text, row, rollout), which is no known way" in refused.stderr
