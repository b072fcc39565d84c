"""The machine of a run: its threads, its description, comparison with another machine, and returning free memory.

``environment.json`` holds the description. Equal bits are promised only on machines of the same kind.
"""

import ctypes
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import zerogap
from zerogap.config.env import read_environment
from zerogap.kernels import kernel_report

_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "pydantic", "gguf")


def apply_threads(*, recorded: int | None = None) -> None:
    """Let the tensor kernels use ZEROGAP_THREADS threads, if it is set.

    Args:
        recorded: threads of the run that is recomputed, used if ZEROGAP_THREADS is not set: sums depend on it.
    """
    threads = read_environment().threads or recorded
    if threads is not None:
        torch.set_num_threads(threads)


def describe_environment() -> dict[str, object]:
    """Versions, processor, threads, kernels and the commit of the source tree (None outside a checkout)."""
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
    """The name of the processor."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def machine_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences that can change bits: processor, threads, kernels, torch.

    Args:
        then: an ``environment.json``.
        now: another.
    """
    kinds = {name: (then.get(name), now.get(name)) for name in ("processor", "threads", "kernels")}
    if then.get("threads") != now.get("threads"):
        # The line on kernels names the threads, too.
        del kinds["kernels"]
    kinds["torch"] = _torch(then), _torch(now)
    return _changes(kinds)


def code_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences in version or commit of this package: a possible cause of different bits."""
    return _changes({name: (then.get(name), now.get(name)) for name in ("zerogap", "commit")})


def _changes(values: Mapping[str, tuple[object, object]]) -> tuple[str, ...]:
    return tuple(f"{name} was {a}, is {b}" for name, (a, b) in values.items() if a != b)


def _torch(environment: Mapping[str, Any]) -> object:
    return environment.get("packages", {}).get("torch")


def return_free_memory() -> None:
    """Return freed memory to the system; for the end of a phase that has freed much.

    glibc keeps freed blocks of up to some megabytes, which makes the next micro-batch fast. But a backward pass leaves
    600 MB that a rollout cannot use. Does nothing if the C library has no ``malloc_trim``.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
