"""Model, trainer and engine on a device other than the CPU: every tensor is created there; numbers cross in one place.

``helpers/other_device.py`` runs the cases in a process of its own and explains how it does without such a device.
"""

import json
import subprocess
import sys
from pathlib import Path

import helpers
import pytest

import zerogap


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    script = Path(helpers.__file__).parent / "other_device.py"
    folders = [str(script.parents[1]), str(Path(zerogap.__file__).parents[1])]
    run = f"import runpy, sys; sys.path[:0] = {folders}; runpy.run_path({str(script)!r}, run_name='__main__')"
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", run],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not made.returncode, made.stderr
    return json.loads(made.stdout)


def test_everything_runs_where_the_model_is(found):
    whole = {name: outcome for name, outcome in found.items() if "planted" not in name}
    assert len(whole) == 9
    assert set(whole.values()) == {"ok"}, whole


@pytest.mark.parametrize("fault", ["targets on the CPU", "a layout on the CPU", "a CPU scalar"])
def test_a_tensor_that_stayed_on_the_cpu_is_noticed(found, fault):
    assert "tensors of several devices" in found[f"planted: {fault}"]
