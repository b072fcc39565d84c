"""Describes the machine of a measurement, its memory, and the load by other processes."""

import os
import platform
import resource
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from time import perf_counter

_PACKAGES = ("torch", "transformers", "trl", "llama-cpp-python", "numpy")
_PROC_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)
"""Of /proc/stat's cpu line: idle and iowait."""


def describe_machine() -> dict[str, object]:
    """Processor, cores, versions, and the measured commit, with ``-dirty`` if files differ from it."""
    # Imported here because it loads torch, which the main process does not need otherwise.
    from zerogap.run.machine import processor_name

    return {
        "device": " ".join([processor_name(), *_processor_kind()]),
        "num_cores": os.cpu_count(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
    }


class PeakMemory:
    """Peak resident memory of this process, in 10^9 bytes, without the blocks inside ``leave_out``.

    The high-water mark of the system counts everything. ``leave_out`` reads it before a block and resets it afterwards.
    Where the system does not allow a reset (other than Linux), the block's memory counts too.
    """

    def __init__(self) -> None:
        self._before_gb = 0.0

    @property
    def gb(self) -> float:
        """The peak so far."""
        return max(self._before_gb, _high_water_gb())

    @contextmanager
    def leave_out(self) -> Generator[None]:
        """Do not count memory that the block allocates and frees."""
        self._before_gb = self.gb
        yield
        _reset_high_water()


def _high_water_gb() -> float:
    peak = _proc_bytes("self/status", "VmHWM")
    # macOS counts ru_maxrss in bytes.
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if peak is None else peak) / 1e9


def resident_bytes() -> int | None:
    """Resident memory of this process now; None without /proc."""
    return _proc_bytes("self/status", "VmRSS")


def available_bytes() -> int | None:
    """Memory that a process can still allocate; None without /proc."""
    return _proc_bytes("meminfo", "MemAvailable")


def _proc_bytes(file: str, field: str) -> int | None:
    path = Path("/proc", file)
    if not path.exists():
        return None
    lines = dict(line.split(":", 1) for line in path.read_text().splitlines())
    return int(lines[field].split()[0]) * 1024


def _reset_high_water() -> None:
    clear_refs = Path("/proc/self/clear_refs")
    # Missing on other systems and read-only in some containers. Then the mark stays, so the peak may be too high, never too low.
    if clear_refs.exists() and os.access(clear_refs, os.W_OK):
        clear_refs.write_text("5")


class OthersLoad:
    """Share of all cores that other processes used inside the context; None without /proc."""

    def __enter__(self) -> "OthersLoad":
        self._start = self._now()
        return self

    def __exit__(self, *exception: object) -> None:
        busy_s, own_s, wall_s = (b - a for a, b in zip(self._start, self._now(), strict=True))
        has_proc = _PROC_STAT.exists()
        self.share = (
            max(0.0, busy_s - own_s) / (wall_s * (os.cpu_count() or 1)) if has_proc else None
        )
        self.wall_s = wall_s

    def _now(self) -> tuple[float, float, float]:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return _busy_seconds(), own.ru_utime + own.ru_stime, perf_counter()


def _busy_seconds() -> float:
    if not _PROC_STAT.exists():
        return 0.0
    # user nice system idle iowait irq softirq steal; user includes the guest times.
    ticks = [int(field) for field in _PROC_STAT.read_text().splitlines()[0].split()[1:9]]
    busy = sum(tick for place, tick in enumerate(ticks) if place not in _IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")


def _processor_kind() -> list[str]:
    # In a virtual machine, processors of several generations may have the same name.
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return []
    lines = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
    fields = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    return [f"{name} {fields[name]}" for name in ("cpu family", "model") if name in fields]


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    # The commit of the checkout that contains this file; an installed package has none.
    root = Path(__file__).parents[2]
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=root, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
