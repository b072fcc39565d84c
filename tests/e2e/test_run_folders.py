"""A run's folder has one owner, says what is safe when it cannot be written, and belongs to one recipe."""

import json
import signal

import pytest
from helpers import signalled_run
from helpers.commands import python_process, zerogap
from helpers.file_limit import file_limit
from helpers.tiny_runs import arguments, metrics, run

from zerogap.obs import read_jsonl
from zerogap.run.digests import digests_of_files
from zerogap.run.lock import owned
from zerogap.run_folder import RunFolder

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two steps with one checkpoint, at the end."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder, run__steps="2")
    return folder


def test_a_second_run_in_a_folder_is_refused_and_changes_nothing(tmp_path):
    folder = tmp_path / "run"
    run(folder, run__steps="2")
    with owned(RunFolder(folder)):
        before = digests_of_files(folder)
        refused = zerogap(*arguments(folder, run__steps="4", train__learning_rate="1e-9"))
        assert refused.returncode == 2
        assert "is in use by process" in refused.stderr
        assert "set another run.dir" in refused.stderr
        assert digests_of_files(folder) == before
    run(folder, run__steps="4")
    assert metrics(folder)[-1]["step"] == 4


@pytest.mark.parametrize("num_bytes", [12_000, 200_000])
def test_a_full_disk_is_one_sentence_that_says_what_is_safe_and_the_run_goes_on(
    whole, tmp_path, num_bytes
):
    folder = tmp_path / "run"
    run(folder, run__steps="1", train__warmup_steps="0")
    with file_limit(num_bytes):
        full = zerogap(*arguments(folder, run__steps="2", train__warmup_steps="0"))
    assert full.returncode == 2
    assert full.stderr.count("\n") == 1
    assert "cannot be written (File too large); step 1 is saved: make room" in full.stderr
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["step_000001"]
    scratch = {p.name for p in folder.rglob("*") if p.name.startswith(".") or "partial" in p.name}
    assert scratch == {".lock"}
    run(folder, run__steps="2", train__warmup_steps="0")
    assert [line["step"] for line in metrics(folder)] == [0, 1, 2]


def test_a_disk_that_is_full_from_the_start_says_what_to_do_too(tmp_path):
    for num_bytes in (100, 4000):
        with file_limit(num_bytes):
            full = zerogap(*arguments(tmp_path / str(num_bytes)))
        assert full.returncode == 2
        assert "cannot be written (File too large); no step is saved yet: make room" in full.stderr


def test_a_run_without_its_recipe_is_refused(whole, tmp_path):
    folder = tmp_path / "run"
    run(folder, run__steps="2")
    config = folder / "config.json"
    text = config.read_text()
    for damaged in (None, text[: len(text) // 2]):
        config.unlink() if damaged is None else config.write_text(damaged)
        refused = zerogap(*arguments(folder, run__steps="4", train__learning_rate="1e-9"))
        assert refused.returncode == 2
        assert "config.json cannot be read" in refused.stderr
    config.write_text(text)
    run(folder, run__steps="4")


@pytest.mark.slow
def test_sigterm_has_an_exit_code_of_its_own_and_loses_nothing(tmp_path):
    folder = tmp_path / "run"
    ended = python_process(signalled_run.__file__, "SIGTERM", "step/generate", "1", *arguments(folder))  # fmt: skip
    assert ended.returncode == 128 + signal.SIGTERM, ended.stdout + ended.stderr
    assert metrics(folder)[-1]["step"] == 1
    assert (folder / "checkpoints" / "step_000001").exists()


def test_a_disk_that_is_too_small_is_refused_before_the_first_step(tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    refused = zerogap(*arguments(tmp_path / "run"))
    assert refused.returncode == 2
    assert "the run needs" in refused.stderr
    assert "0.1 MB are free" in refused.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_the_line_about_the_disk_is_true(whole):
    """The figures are those of the files; small files come on top."""
    shown = run(whole, run__steps="2")
    line = next(line for line in shown.splitlines() if line.startswith("disk: "))
    export = (whole / "export" / "model.safetensors").stat().st_size
    checkpoint = sum(p.stat().st_size for p in (whole / "checkpoints").rglob("*.safetensors"))
    assert f"1 checkpoint of {checkpoint / 1e6:.1f} MB, model {export / 1e6:.1f} MB" in line
    assert read_jsonl(whole / "metrics.jsonl")
    assert json.loads((whole / "config.json").read_text())["run"]["steps"] == 2
