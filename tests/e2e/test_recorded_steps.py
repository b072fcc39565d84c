"""Recorded steps of every kind of run, read from the run's folder: weights, ledger, capsule and their commands."""

import json
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
from helpers.commands import zerogap, zerogap_process
from helpers.recorded_run import change_column, copy_without, make_run
from rich.console import Console

from zerogap.audit import RecordedRun, audit_step, rewind
from zerogap.capsule import agrees_with_run, make_capsule, replay_capsule
from zerogap.obs import Progress, read_jsonl

pytestmark = pytest.mark.e2e

KINDS = {
    "bf16": {"model__dtype": "bf16"},
    "updates": {"train__updates_per_step": "3"},
    "reference": {"loss__kind": "grpo", "kl": '{kind = "k3", coefficient = 0.1}'},
    "moving reference": {"loss__kind": "grpo", "kl": '{kind = "k3", coefficient = 0.1, refresh = {every = 1, weight = 0.3}}'},
    "self-distillation": {"loss__kind": "sdpo", "advantage__kind": "group", "teacher__hint__min_reward": "0.02"},
    "an undone step": {"loss__kind": "mipu", "acceptance__tolerance": "0", "numerics": "fast", "engine__dtype": "bf16"},
    "critic": {"loss__kind": "ppo"},
    "critic in bf16": {"loss__kind": "ppo", "model__dtype": "bf16"},
    "lag": {"rollout__lag": "1", "corrections__weight__high": "2.0"},
    "bypass": {"rollout__lag": "1", "train__old_log_probs": "rollout"},
    "engine in bf16": {"numerics": "fast", "engine__dtype": "bf16"},
}  # fmt: skip
"""Name -> recipe keys."""
OPEN = {
    "lag": {"staleness"},
    "bypass": {"staleness"},
    "engine in bf16": {"numbers"},
    "an undone step": {"numbers"},
}
"""Sources of the gap that the loss sees; of the others nothing."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_comes_back_from_its_rollouts_alone(kind: str, tmp_path: Path):
    run = make_run(tmp_path / "run", steps=3, **KINDS[kind])
    if kind == "an undone step":
        undone = [line.get("acceptance/is_undone") for line in read_jsonl(run / "metrics.jsonl")]
        assert undone == [None, 1.0, None]
    folder = copy_without(run, tmp_path / "copy", "checkpoints")
    quiet = Progress(Console(), is_quiet=True)
    assert rewind(RecordedRun(folder), 3, progress=quiet).is_proven

    audit = audit_step(folder, step=3, quiet=True)
    assert audit.entry.statistics is not None
    assert audit.entry.num_unattributed == 0
    sources = audit.entry.statistics.sources
    assert {name for name in sources if sources[name].open.max > 0} == OPEN.get(kind, set())

    capsule = make_capsule(folder, tmp_path / "c.zip", step=3, quiet=True)
    assert agrees_with_run(capsule) is (None if kind == "updates" else True)
    assert replay_capsule(tmp_path / "c.zip", quiet=True).is_equal


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps."""
    return make_run(tmp_path_factory.mktemp("runs") / "whole", steps=3)


def test_audit_shows_where_a_log_prob_was_changed(run: Path, tmp_path: Path):
    folder = copy_without(run, tmp_path / "run", "checkpoints")
    change_column(folder, 2, "rollout_log_probs", lambda column: column.__setitem__(5, column[5] - 0.5))  # fmt: skip
    done = zerogap("audit", folder, "--step", "2", "--tokens", "1", "--html", tmp_path / "p.html")
    assert done.returncode == 0, done.stderr
    assert "retrained on the rollouts of step 1" in done.stdout
    assert "train-000002-0000/0, position 5: gap 0.500" in done.stdout
    assert "gap-5 numbers-5" in (tmp_path / "p.html").read_text("utf-8")
    done = zerogap("audit", run, "--step", "2", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"]["open"]["max"] == 0.0


def test_audit_says_which_rollouts_are_missing(run: Path, tmp_path: Path):
    folder = copy_without(run, tmp_path / "run", "checkpoints", "rollouts/step_000001")
    done = zerogap("audit", folder, "--step", "3")
    assert done.returncode == 2
    assert "missing for steps 1 " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_capsule_replays_and_one_with_other_weights_does_not(run: Path, tmp_path: Path):
    whole, other = tmp_path / "whole.zip", tmp_path / "other.zip"
    made = zerogap("capsule", run, "--step", "2", whole)
    assert made.returncode == 0, made.stderr
    assert "the run recorded the same loss and gradient norm" in made.stdout
    replayed = zerogap_process("replay", whole)
    assert (replayed.returncode, replayed.stdout.splitlines()[-1]) == (0, "the same bits")

    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "weights.safetensors":
                weights = safetensors.torch.load(content)
                weights["norm.weight"][0] *= 1.01
                content = safetensors.torch.save(weights)
            new.writestr(name, content)
    replayed = zerogap("replay", other)
    assert replayed.returncode == 1, replayed.stderr
    assert "1 tensor (norm.weight) of 18 differ from the capsule's" in replayed.stdout
    assert "NOT the same bits" in replayed.stdout
