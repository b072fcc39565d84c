"""Loading a model needs memory for its weights and a small piece, measured in a separate process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.gguf_files import write_model_gguf
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model

from zerogap.models import export_hf

MOST = 1.25
"""Largest growth while loading, as a multiple of the weights."""

LOAD = """
import sys
import gguf, torch
from zerogap.models import load_model

def kilobytes(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name))

source, planted = sys.argv[1:]
before = kilobytes("VmRSS")
whole = open(planted, "rb").read() if planted else None
model = load_model(source).model
weights = sum(p.nbytes for p in model.parameters())
print((kilobytes("VmHWM") - before) * 1024 / weights)
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="peak memory is read from /proc"
)


@pytest.fixture(scope="module")
def model():
    """About 200 MB, a quarter of it in one tensor."""
    return tiny_model(
        vocab_size=12_800, hidden_size=1024, intermediate_size=3072, num_heads=16, head_dim=64,
        num_layers=3, tie_word_embeddings=True,
    )  # fmt: skip


def growth(source: Path, planted: Path | None = None) -> float:
    command = [sys.executable, "-c", LOAD, str(source), str(planted or "")]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def check(share: float) -> None:
    assert share < MOST, f"loading took {share:.2f} times the weights' memory"


@pytest.mark.slow
def test_a_folder_is_never_in_memory_twice(tmp_path, model):
    folder = export_hf(model, tmp_path / "folder")
    check(growth(folder))
    with planted_fault("the file is read as a whole first"):
        check(growth(folder, folder / "model.safetensors"))


@pytest.mark.slow
def test_a_gguf_file_is_dequantised_piece_by_piece(tmp_path, model):
    with torch.no_grad():
        write_model_gguf(tmp_path / "m.gguf", model, matrices=("F16",))
    check(growth(tmp_path / "m.gguf"))
