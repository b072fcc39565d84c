"""What a run ran on: versions, machine, commit. Recorded once in ``environment.json``."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

import zerogap
from zerogap.kernels import kernel_report

_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "pydantic", "gguf")


def describe_environment() -> dict[str, object]:
    """Versions, processor, threads, kernels and the commit of the source tree (None outside of one)."""
    return {
        "zerogap": zerogap.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "kernels": kernel_report().removeprefix("kernels: "),
    }


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def processor_name() -> str:
    """What the processor calls itself."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
