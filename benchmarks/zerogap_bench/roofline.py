"""Measures the limits of this machine: multiply-adds from registers alone, and bytes read from and copied in memory.

No kernel uses these numbers; benchmarks divide by them. All functions use as many threads as torch.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from zerogap.errors import KernelError
from zerogap.kernels.native import native

_FMA_ROUNDS = 10_000_000
"""About 40 ms on a current core."""
_FMA_SAMPLES = 5
_BANDWIDTH_SAMPLES = 5
BANDWIDTH_BYTES = 500_000_000
"""Far larger than any last-level cache."""


@dataclass(frozen=True)
class Bandwidth:
    """In GB/s of 10^9 bytes."""

    read: float
    """Bytes read while summing half a GB; the best of some samples."""
    copy: float
    """Bytes read plus bytes written by ``torch.Tensor.copy_`` of the same size; the best of some samples. Cache lines
    fetched only to be written do not count."""


def measure_fma_peak(
    *, num_rounds: int = _FMA_ROUNDS, num_samples: int = _FMA_SAMPLES
) -> float | None:
    """GFLOP/s of fp32 multiply-adds that touch no memory, the best of some samples; None without the C++ kernels.

    Args:
        num_rounds: multiply-adds of each of a thread's sums.
        num_samples: number of measurements.
    """
    library = native.library
    if library is None:
        return None
    library.zg_fma_peak.restype = ctypes.c_double
    sink, threads = ctypes.c_float(), ctypes.c_int64(torch.get_num_threads())
    rounds = ctypes.c_int64(num_rounds)
    return max(library.zg_fma_peak(rounds, threads, ctypes.byref(sink)) for _ in range(num_samples))


def measure_bandwidth(
    *, num_bytes: int = BANDWIDTH_BYTES, num_samples: int = _BANDWIDTH_SAMPLES
) -> Bandwidth:
    """Read and copy bandwidth of memory. Needs twice ``num_bytes`` while it runs.

    Without the C++ kernels the read is torch's sum, which does more than read.

    Args:
        num_bytes: read in one sample.
        num_samples: number of measurements.

    Raises:
        KernelError: the system has too little memory.
    """
    read = _read_gb_s(num_bytes, num_samples)
    source, target = torch.ones(num_bytes // 4), torch.zeros(num_bytes // 4)
    return Bandwidth(
        read=read, copy=_best_gb_s(2 * num_bytes, lambda: target.copy_(source), num_samples)
    )


def _read_gb_s(num_bytes: int, num_samples: int) -> float:
    library = native.library
    if library is None:
        source = torch.ones(num_bytes // 4)
        return _best_gb_s(num_bytes, source.sum, num_samples)
    library.zg_read_bandwidth.restype = ctypes.c_double
    length, samples = ctypes.c_int64(num_bytes // 4), ctypes.c_int64(num_samples)
    sink, threads = ctypes.c_float(), ctypes.c_int64(torch.get_num_threads())
    found = library.zg_read_bandwidth(length, samples, threads, ctypes.byref(sink))
    if not found:
        msg = f"the read bandwidth of memory is measured over {num_bytes} bytes, and the system cannot allocate that buffer; free some memory"
        raise KernelError(msg)
    return found


def _best_gb_s(num_bytes: int, move: Callable[[], object], num_samples: int) -> float:
    seconds = []
    for _ in range(num_samples):
        start_s = perf_counter()
        move()
        seconds.append(perf_counter() - start_s)
    return num_bytes / min(seconds) / 1e9
