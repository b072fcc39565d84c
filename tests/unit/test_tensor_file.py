"""What the package writes can be read by whom the umask allows, and a full disk is the system's error."""

import os
import stat

import numpy as np
import pytest
import torch
from helpers.file_limit import file_limit
from helpers.samples import completed_sample
from helpers.tiny_models import tiny_model

from zerogap.models import export_hf
from zerogap.rollout import save_rollouts
from zerogap.run.checkpoint import WeightsPart, save_checkpoint
from zerogap.tensor_file import save_arrays, save_tensors


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_every_file_and_folder_follows_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        export_hf(tiny_model(), tmp_path / "export")
        save_checkpoint(tmp_path / "checkpoints", 1, [WeightsPart(tiny_model())], keep=1)
        save_rollouts(tmp_path / "rollouts", [completed_sample()])
    finally:
        os.umask(before)
    found = {p: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*")}
    expected = {p: (0o777 if p.is_dir() else 0o666) & ~umask for p in found}
    assert sum(p.suffix == ".safetensors" for p in found) == 3
    assert found == expected


@pytest.mark.parametrize(
    "save",
    [
        lambda path: save_tensors({"x": torch.zeros(999)}, path),
        lambda path: save_arrays({"x": np.zeros(999)}, path),
    ],
    ids=["tensors", "arrays"],
)
def test_a_full_disk_is_an_os_error_with_its_number(tmp_path, save):
    with file_limit(1000), pytest.raises(OSError, match="File too large") as error:
        save(tmp_path / "x.safetensors")
    assert error.value.filename == str(tmp_path / "x.safetensors")
    save(tmp_path / "x.safetensors")
