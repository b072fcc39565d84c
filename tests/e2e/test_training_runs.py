"""Whole runs of the tiny recipe: they learn, resume with the same results, and write all their files."""

import json
import os
import shutil
import signal
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch
from helpers import signalled_run
from helpers.commands import python_process, zerogap, zerogap_process
from helpers.tiny_runs import RECIPE, arguments, metrics, run
from safetensors.torch import load_file

from zerogap.obs import read_jsonl
from zerogap.rollout import load_rollouts

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = zerogap_process(*arguments(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def signalled(name: str, moment: str, count: int, folder: Path) -> CompletedProcess[str]:
    """The run in a process that sends itself a signal after this many events of a kind."""
    return python_process(signalled_run.__file__, name, moment, str(count), *arguments(folder))


@pytest.mark.parametrize(
    ("moment", "count", "steps_done"),
    [
        pytest.param("metrics.jsonl", 2, 1, marks=pytest.mark.slow),
        ("checkpoint", 1, 2),
        ("step/generate", 4, 3),
        pytest.param("metrics.jsonl", 5, 4, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_step_and_started_again_ends_with_the_same_metrics_and_weights(
    uninterrupted: Path, tmp_path: Path, moment: str, count: int, steps_done: int
):
    folder = tmp_path / "killed"
    killed = signalled("SIGKILL", moment, count, folder)
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert metrics(folder)[-1]["step"] == steps_done
    run(folder)
    assert metrics(folder) == metrics(uninterrupted)
    last = "checkpoints/step_000006/weights/model.safetensors"
    assert (folder / last).read_bytes() == (uninterrupted / last).read_bytes()
    last = "checkpoints/step_000006/trainer/trainer.safetensors"
    assert (folder / last).read_bytes() == (uninterrupted / last).read_bytes()


def test_a_torn_checkpoint_is_as_if_it_were_not_there(uninterrupted: Path, tmp_path: Path):
    folder = tmp_path / "torn"
    run(folder, run__steps="2")
    partial = folder / "checkpoints" / ".step_000004.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    run(folder)
    assert metrics(folder) == metrics(uninterrupted)
    assert read_jsonl(folder / "ledger.jsonl") == read_jsonl(uninterrupted / "ledger.jsonl")
    assert not partial.exists()


def test_the_first_ctrl_c_finishes_the_step_and_saves_it(uninterrupted: Path, tmp_path: Path):
    folder = tmp_path / "interrupted"
    asked = signalled("SIGINT", "step/generate", 3, folder)
    assert "will be finished and saved" in asked.stdout, asked.stdout + asked.stderr
    assert asked.returncode == 128 + signal.SIGINT
    assert metrics(folder)[-1]["step"] == 3
    assert (folder / "checkpoints" / "step_000003").exists()
    run(folder)
    assert metrics(folder) == metrics(uninterrupted)


def test_the_gap_is_exactly_zero_at_every_step(uninterrupted: Path):
    steps = metrics(uninterrupted)[1:]
    assert [line["gap/total/max"] for line in steps] == [0.0] * 6
    assert all(line["gap/num_tokens"] > 0 for line in steps)
    assert all(line["policy/clip_fraction"] == 0 for line in steps)


def test_the_weights_did_move(uninterrupted: Path):
    steps = metrics(uninterrupted)[1:]
    assert len({line["policy/entropy"] for line in steps}) == 6
    assert [line["weight_version"] for line in steps] == [1, 2, 3, 4, 5, 6]


def test_the_gap_is_zero_at_other_temperatures_too(tmp_path: Path):
    run(tmp_path / "t", rollout__sampling__temperature="0.7", run__steps="2")
    assert [line["gap/total/max"] for line in metrics(tmp_path / "t")[1:]] == [0.0, 0.0]


def test_a_bf16_run_has_no_gap_and_goes_on_with_its_masters(tmp_path: Path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, model__dtype="bf16", run__steps="4")
    run(parts, model__dtype="bf16", run__steps="2")
    run(parts, model__dtype="bf16", run__steps="4")
    assert metrics(parts) == metrics(whole)
    assert [line["gap/total/max"] for line in metrics(whole)[1:]] == [0.0] * 4
    last = Path("checkpoints", "step_000004")
    files = [last / "weights" / "model.safetensors", last / "trainer" / "trainer.safetensors"]
    for name in files:
        assert (parts / name).read_bytes() == (whole / name).read_bytes()
    weights, trainer = (load_file(whole / name) for name in files)
    name = "layers.0.qkv.weight"
    master = trainer[f"optimizer.master.{name}"]
    assert torch.equal(master.bfloat16().float(), weights[name])
    assert not torch.equal(master, weights[name])
    assert json.loads((whole / "export" / "config.json").read_text())["dtype"] == "bfloat16"


def test_truncated_sampling_shows_as_a_gap_from_sampling_and_from_nothing_else(tmp_path: Path):
    shown = run(tmp_path / "t", rollout__sampling__top_p="0.9", run__steps="2")
    assert "gap/sampling" in shown
    for line in metrics(tmp_path / "t")[1:]:
        assert line["gap/numbers/open/max"] == 0.0
        assert line["gap/sampling/open/mean"] > 0.01
        assert line["gap/total/mean"] == pytest.approx(line["gap/sampling/open/mean"])


def test_later_updates_take_the_engines_log_probs_and_end_with_the_same_weights(tmp_path: Path):
    several = {"run__steps": "2", "train__updates_per_step": "2", "train__micro_batch_tokens": "30"}
    run(tmp_path / "taken", **several)
    run(tmp_path / "scored", **several, train__audit_share="1.0")
    taken, scored = (metrics(tmp_path / name)[1:] for name in ("taken", "scored"))
    assert all(line["train/old/num_taken"] > 0 for line in taken)
    assert all(line["train/old/num_taken"] == 0 for line in scored)
    assert all(line["train/old/num_different"] == 0 for line in taken + scored)
    assert [line["train/loss"] for line in taken] == [line["train/loss"] for line in scored]
    last = "checkpoints/step_000002/weights/model.safetensors"
    assert (tmp_path / "taken" / last).read_bytes() == (tmp_path / "scored" / last).read_bytes()


def test_rollouts_on_disk_hold_what_engine_and_trainer_said(uninterrupted: Path):
    from safetensors.numpy import load_file

    folder = uninterrupted / "rollouts" / "step_000003"
    samples = load_rollouts(folder)
    trainer = load_file(folder / "trainer.safetensors")["old_log_probs"]
    engine = np.concatenate([s.rollout_log_probs for s in samples])
    trained = np.concatenate([s.loss_mask for s in samples])
    assert len(samples) == 16
    assert np.array_equal(trainer[trained], engine[trained])


def test_a_run_leaves_a_model_that_transformers_loads_and_a_report(uninterrupted: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(uninterrupted / "export")
    tokenizer = AutoTokenizer.from_pretrained(uninterrupted / "export")
    logits = model(torch.tensor([tokenizer("ab").input_ids])).logits
    assert torch.isfinite(logits).all()
    page = (uninterrupted / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page


def test_the_export_command_writes_the_same_model(uninterrupted: Path, tmp_path: Path):
    assert zerogap("export", uninterrupted, tmp_path / "out").returncode == 0
    for name in ("model.safetensors", "README.md", "config.json", "tokenizer.json"):
        one, two = (f / name for f in (uninterrupted / "export", tmp_path / "out"))
        assert one.read_bytes() == two.read_bytes()


def test_the_export_command_writes_an_older_or_the_best_checkpoint(
    uninterrupted: Path, tmp_path: Path
):
    evaluated = {line["step"]: line["eval/reward/mean"] for line in metrics(uninterrupted) if line["step"] in (4, 6)}  # fmt: skip
    best = max(evaluated, key=lambda step: (evaluated[step], step))
    for flags, step in ((["--step", "4"], 4), (["--best"], best)):
        out = tmp_path / flags[0]
        done = zerogap("export", uninterrupted, out, *flags)
        assert done.returncode == 0, done.stderr
        assert f"after step {step} " in done.stdout
        weights = load_file(
            uninterrupted / f"checkpoints/step_{step:06d}/weights/model.safetensors"
        )
        exported = load_file(out / "model.safetensors")
        assert torch.equal(exported["model.norm.weight"], weights["norm.weight"])
        assert f"| {evaluated[step]:.3f} |" in (out / "README.md").read_text()
    refused = zerogap("export", uninterrupted, tmp_path / "none", "--step", "2")
    assert refused.returncode == 2
    assert "no checkpoint of step 2, only 4, 6" in refused.stderr


def test_a_finished_run_started_again_changes_nothing(uninterrupted: Path):
    before = metrics(uninterrupted)
    run(uninterrupted)
    assert metrics(uninterrupted) == before


def test_another_recipe_in_the_same_folder_is_refused_with_the_keys_that_differ(
    uninterrupted: Path,
):
    done = zerogap(*arguments(uninterrupted, train__learning_rate="0.5"))
    assert done.returncode == 2
    assert "train.learning_rate" in done.stderr
    assert "run.dir" in done.stderr


def test_a_damaged_checkpoint_is_an_error_that_names_it(uninterrupted: Path, tmp_path: Path):
    folder = tmp_path / "damaged"
    shutil.copytree(uninterrupted, folder)
    weights = folder / "checkpoints" / "step_000006" / "weights" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    done = zerogap(*arguments(folder))
    assert done.returncode == 2
    assert "step_000006" in done.stderr
    assert "model.safetensors is not as it was saved" in done.stderr


def test_the_folder_says_what_ran(uninterrupted: Path):
    environment = json.loads((uninterrupted / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    config = json.loads((uninterrupted / "config.json").read_text())
    assert config["run"]["steps"] == 6
    spans = read_jsonl(uninterrupted / "events.jsonl")
    assert {"step/generate", "step/train", "step/publish"} <= {s["span"] for s in spans}
    assert os.path.getsize(uninterrupted / "events.jsonl") > 0


@pytest.mark.slow
def test_the_tiny_recipe_learns_from_scratch(tmp_path: Path):
    folder = tmp_path / "learns"
    assert zerogap("train", RECIPE, "--run.dir", folder).returncode == 0
    held_out = [line["eval/reward/mean"] for line in metrics(folder) if "eval/reward/mean" in line]
    assert held_out[0] < 0.3
    assert held_out[-1] > 0.7
    assert all(line["gap/total/max"] == 0.0 for line in metrics(folder)[1:])
