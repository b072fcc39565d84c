"""One recorded run for all tests that look at one; they copy what they change."""

import json
from pathlib import Path

import pytest
from helpers.recorded_run import make_run


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps, with a checkpoint and rollouts of each."""
    return make_run(tmp_path_factory.mktemp("runs") / "whole", steps=4)


@pytest.fixture(scope="session")
def fingerprints(recorded: Path) -> dict[int, str]:
    """Of versions 1 to 4, from the checkpoints."""
    states = sorted((recorded / "checkpoints").glob("step_*/state.json"))
    found = [json.loads(path.read_text()) for path in states]
    return {state["weight_version"]: state["fingerprint"] for state in found}
