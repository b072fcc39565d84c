"""What one phase of a step used does not stand in the way of the next one."""

import io
from pathlib import Path

import numpy as np
import pytest
from helpers.planted_fault import planted_fault
from rich.console import Console

from zerogap.config.load import load_config
from zerogap.run import return_free_memory
from zerogap.run.train import TrainingRun
from zerogap.train import Trainer

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


def test_the_engine_has_no_cache_while_the_trainer_works(tmp_path, monkeypatch):
    seen = []
    plain = Trainer.step

    def step(self, *args, **named):
        seen.append(run.engine.is_released)
        return plain(self, *args, **named)

    monkeypatch.setattr(Trainer, "step", step)
    changes = {
        "run.dir": tmp_path / "run",
        "run.steps": 2,
        "rollout.prompts_per_step": 2,
        "rollout.group_size": 2,
        "model.init.num_layers": 1,
        "evaluate.every": 0,
        "train.warmup_steps": 0,
    }
    flags = [part for key, value in changes.items() for part in (f"--{key}", str(value))]
    config = load_config([RECIPE], flags).config
    with TrainingRun(config, Console(file=io.StringIO()), is_quiet=True) as run:
        for _ in range(2):
            run.advance()
            assert not run.engine.is_released
    assert seen == [True, True]


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096
