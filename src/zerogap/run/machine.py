"""The machine of a run: what it is, whether another is of the same kind, and memory that goes back to it.

``environment.json`` records it once; bits are promised on machines of one kind only.
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


def machine_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What bits depend on and is different: processor, threads, kernels, torch.

    Args:
        then: an ``environment.json``.
        now: another.
    """
    return tuple(_machine(then, now))


def code_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Whether other code of this package ran: a suspect, though it is compared to the bit all the same."""
    return tuple(
        _changed(name, then.get(name), now.get(name))
        for name in ("zerogap", "commit")
        if then.get(name) != now.get(name)
    )


def _machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in ("processor", "threads"):
        if then.get(name) != now.get(name):
            yield _changed(name, then.get(name), now.get(name))
    # The kernels' own line names the threads too.
    if then.get("threads") == now.get("threads") and then.get("kernels") != now.get("kernels"):
        yield _changed("kernels", then.get("kernels"), now.get("kernels"))
    if _torch(then) != _torch(now):
        yield _changed("torch", _torch(then), _torch(now))


def _changed(name: str, then: object, now: object) -> str:
    return f"{name} {then} then, {now} now"


def _torch(environment: Mapping[str, Any]) -> object:
    return environment.get("packages", {}).get("torch")


def return_free_memory() -> None:
    """Make the process as small as what it uses; for the points where one phase has freed much of it.

    glibc keeps freed blocks below some megabytes, which is what makes the next micro-batch quick: a backward pass
    leaves 600 MB behind that a rollout, with its own needs, does not fit into. Nothing where the C library has no
    ``malloc_trim``.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
