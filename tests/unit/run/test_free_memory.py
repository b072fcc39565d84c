"""Memory that one phase of a step has freed is available to the next one."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.planted_fault import planted_fault
from rich.console import Console

from zerogap.config.load import load_config
from zerogap.run import return_free_memory
from zerogap.run.training_run import TrainingRun
from zerogap.train import NativeTrainer

RECIPE = Path(__file__).parents[3] / "recipes" / "tiny.toml"
STATM = Path("/proc/self/statm")
_SMALL = 100_000
"""Bytes; blocks of this size stay with the C library when they are freed below one that is in use."""


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
def test_freed_blocks_go_back_to_the_system():
    def grow_and_free() -> tuple[int, np.ndarray]:
        blocks = [np.ones(_SMALL, np.uint8) for _ in range(640)]
        used = resident_bytes()
        last = blocks[-1]
        return used, last

    def check_fallen(used: int) -> None:
        assert used - resident_bytes() > 50_000_000

    return_free_memory()
    used, last = grow_and_free()
    with planted_fault("nobody asks for it"):
        check_fallen(used)
    return_free_memory()
    check_fallen(used)
    assert last.all()


HEAVY = """
import sys
from zerogap.run.training_run import TrainingRun
from zerogap.config.load import load_config
from rich.console import Console
with TrainingRun(load_config([sys.argv[1]], sys.argv[2:]).config, Console(), is_quiet=True) as run:
    run.advance()
    run.advance()
print([name for name in ("torch._dynamo", "sympy", "pandas", "pyarrow", "sklearn") if name in sys.modules])
"""


@pytest.mark.slow
def test_a_run_imports_no_compiler_and_no_tables(tmp_path):
    """torch imports its compiler for classes that look harmless, which takes seconds and 80 MB."""
    command = [sys.executable, "-c", HEAVY, str(RECIPE), *small_run(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_engine_has_no_cache_while_the_trainer_works(tmp_path, monkeypatch):
    seen = []
    plain = NativeTrainer.step

    def step(self, *args, **named):
        seen.append(is_released(run))
        return plain(self, *args, **named)

    monkeypatch.setattr(NativeTrainer, "step", step)
    config = load_config([RECIPE], small_run(tmp_path)).config
    with TrainingRun(config, Console(file=io.StringIO()), is_quiet=True) as run:
        for _ in range(2):
            run.advance()
            assert not is_released(run)
    assert seen == [True, True]


def is_released(run: TrainingRun) -> bool:
    return run.engine.call(lambda engine: engine.is_released).result()


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096


def small_run(tmp_path: Path) -> list[str]:
    """Flags for two steps in a second."""
    changes = {
        "run.dir": tmp_path / "run",
        "run.steps": 2,
        "rollout.prompts_per_step": 2,
        "rollout.group_size": 2,
        "model.init.num_layers": 1,
        "evaluate.every": 0,
        "train.warmup_steps": 0,
    }
    return [part for key, value in changes.items() for part in (f"--{key}", str(value))]
