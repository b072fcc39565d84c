"""The machine of a run: its description, comparison with another machine, and returning free memory.

``environment.json`` holds the description. Equal bits are promised only on machines of the same kind.
"""

import ctypes
import platform
import subprocess
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import zerogap
from zerogap.kernels import kernel_report

_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "pydantic", "gguf")


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
    return tuple(_machine(then, now))


def code_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Differences in version or commit of this package: a possible cause of different bits."""
    return tuple(
        _changed(name, then.get(name), now.get(name))
        for name in ("zerogap", "commit")
        if then.get(name) != now.get(name)
    )


def _machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in ("processor", "threads"):
        if then.get(name) != now.get(name):
            yield _changed(name, then.get(name), now.get(name))
    # The line on kernels already names the threads.
    if then.get("threads") == now.get("threads") and then.get("kernels") != now.get("kernels"):
        yield _changed("kernels", then.get("kernels"), now.get("kernels"))
    if _torch(then) != _torch(now):
        yield _changed("torch", _torch(then), _torch(now))


def _changed(name: str, then: object, now: object) -> str:
    return f"{name} was {then}, is {now}"


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
