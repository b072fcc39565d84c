import pytest
from helpers.kernel_paths import PATHS, running_on

from zerogap.kernels import roofline
from zerogap.kernels.roofline import measure_bandwidth, measure_fma_peak


def test_multiply_adds_are_counted_and_timed():
    with running_on("native"):
        short, long = (
            measure_fma_peak(num_rounds=rounds, num_samples=2) for rounds in (200_000, 400_000)
        )
    assert short is not None
    assert long is not None
    # A rate, not a time: twice the rounds, about the same; wide, for a busy machine.
    assert 0.2 < long / short < 5
    # Any processor that runs this does more than one multiply-add in ten cycles.
    assert short > 0.5


def test_without_the_kernels_there_is_no_peak():
    with running_on("torch"):
        assert measure_fma_peak() is None


@pytest.mark.parametrize("path", PATHS)
def test_memory_is_read_and_copied(path: str):
    with running_on(path):
        found = measure_bandwidth(num_bytes=4_000_000, num_samples=2)
    assert found.read > 0.1
    assert found.copy > 0.1


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    times = iter([0.0, 1.0, 1.0, 3.0])
    monkeypatch.setattr(roofline, "perf_counter", lambda: next(times))
    with running_on("native"):
        found = measure_bandwidth(num_bytes=4_000_000, num_samples=2)
    assert found.copy == pytest.approx(8_000_000 / 1e9)
