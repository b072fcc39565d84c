import pytest

from zerogap.algorithms import CorrectionsConfig
from zerogap.errors import CheckpointError
from zerogap.obs import JsonlFile
from zerogap.run.versions import StepSettings, read_versions, version_line


def write(path, lines, *, resumed_step=-1):
    with JsonlFile(path, keep_until_step=resumed_step) as file:
        for line in lines:
            file.write(version_line(*line))


def read(path):
    return {version: known.fingerprint for version, known in read_versions(path).items()}


def test_how_a_step_trained_comes_back(tmp_path):
    corrections = CorrectionsConfig.model_validate({"weight": {"high": 3.0}, "veto": 1e-4})
    settings = StepSettings(gemm="blas", is_exact=False, corrections=corrections)
    write(tmp_path / "v", [(0, "aa"), (1, "bb", settings)])
    found = read_versions(tmp_path / "v")
    assert (found[0].settings, found[1].settings) == (None, settings)


def test_what_is_recorded_comes_back(tmp_path):
    write(tmp_path / "v", [(0, "aa"), (1, "bb")])
    assert read(tmp_path / "v") == {0: "aa", 1: "bb"}


def test_a_run_without_the_file_has_no_versions(tmp_path):
    assert read(tmp_path / "v") == {}


def test_a_resumed_run_forgets_the_versions_it_makes_again(tmp_path):
    write(tmp_path / "v", [(0, "aa"), (1, "bb"), (2, "cc")])
    write(tmp_path / "v", [(2, "dd")], resumed_step=1)
    assert read(tmp_path / "v") == {0: "aa", 1: "bb", 2: "dd"}


def test_a_run_that_starts_anew_keeps_no_line(tmp_path):
    write(tmp_path / "v", [(0, "aa"), (1, "bb")])
    write(tmp_path / "v", [(0, "cc")])
    assert read(tmp_path / "v") == {0: "cc"}


def test_two_weights_under_one_version_are_refused(tmp_path):
    write(tmp_path / "v", [(0, "aa")])
    write(tmp_path / "v", [(0, "bb")], resumed_step=5)
    with pytest.raises(CheckpointError, match="version 0 has two fingerprints, aa and bb"):
        read_versions(tmp_path / "v")
