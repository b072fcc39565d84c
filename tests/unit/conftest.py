"""One recorded run for all tests that look at one; they copy what they change."""

import json
from pathlib import Path

import pytest
from helpers.recorded_run import make_run
from safetensors import safe_open


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps, with a checkpoint and rollouts of each."""
    return make_run(tmp_path_factory.mktemp("runs") / "whole", steps=4)


@pytest.fixture(scope="session")
def fingerprints(recorded: Path) -> dict[int, str]:
    """Of versions 1 to 4, from the checkpoints."""
    found = {}
    for folder in sorted((recorded / "checkpoints").glob("step_*")):
        with safe_open(folder / "weights" / "model.safetensors", framework="np") as file:
            about = json.loads(file.metadata()["zerogap"])
        found[int(folder.name.removeprefix("step_"))] = about["fingerprint"]
    return found
