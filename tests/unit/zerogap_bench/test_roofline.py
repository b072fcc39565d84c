"""A rate times the time around its measurement is at least the work, even on a busy machine."""

from time import perf_counter

import pytest
import torch
from helpers.kernel_paths import running_on
from helpers.planted_fault import planted_fault

from zerogap_bench import roofline
from zerogap_bench.roofline import measure_bandwidth, measure_fma_peak

MOST = 2000.0
"""GFLOP/s and GB/s, far above any core; load can only lower a rate."""


def timed(measure):
    """(result, seconds around the call)."""
    start = perf_counter()
    found = measure()
    return found, perf_counter() - start


def test_multiply_adds_are_counted_and_timed():
    threads, rounds = torch.get_num_threads(), 400_000
    with running_on("cpu"):
        peak, seconds = timed(lambda: measure_fma_peak(num_rounds=rounds, num_samples=1))

    def check(rate):
        # 16 lanes of at least 6 sums, two operations each, on every thread.
        assert 2 * 16 * 6 * rounds * threads / seconds / 1e9 <= rate < MOST * threads

    check(peak)
    with planted_fault("operations per second instead of 10^9"):
        check(1e9 * peak)


def test_without_the_kernels_there_is_no_peak():
    with running_on("torch"):
        assert measure_fma_peak() is None


@pytest.mark.parametrize("path", ["cpu", "torch"])
def test_memory_is_read_and_copied(path: str):
    with running_on(path):
        found, seconds = timed(lambda: measure_bandwidth(num_bytes=4_000_000, num_samples=1))
    for rate, num_bytes in ((found.read, 3_900_000), (found.copy, 8_000_000)):
        assert num_bytes / seconds / 1e9 <= rate < MOST * torch.get_num_threads()


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    times = iter([0.0, 1.0, 1.0, 3.0])
    monkeypatch.setattr(roofline, "perf_counter", lambda: next(times))
    with running_on("cpu"):
        found = measure_bandwidth(num_bytes=4_000_000, num_samples=2)
    assert found.copy == pytest.approx(8_000_000 / 1e9)
