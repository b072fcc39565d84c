"""Both kinds of GEMM are timed on the given weights, and a near tie goes to the exact ones."""

import pytest
import torch

from zerogap.kernels import FastGemm, GemmTimes, speed, time_gemm


def times(exact_s, blas_s, num_rows=8):
    return GemmTimes(num_rows=num_rows, num_threads=2, exact_s=exact_s, blas_s=blas_s)


@pytest.mark.parametrize(
    ("blas_s", "expected"), [(0.5, "blas"), (0.94, "blas"), (0.96, "exact"), (1.0, "exact"), (2.0, "exact")]
)  # fmt: skip
def test_a_blas_has_to_be_clearly_faster(blas_s, expected):
    assert times(1.0, blas_s).fastest == expected


def test_the_report_says_what_was_timed_and_what_is_taken():
    report = str(FastGemm(engine=times(0.0126, 0.0229, 64), trainer=times(0.2, 0.1, 512)))
    assert report == (
        "GEMMs timed on 2 threads: engine, 64 rows: exact 12.6 ms, BLAS 22.9 ms, exact taken; "
        "trainer, 512 rows: exact 200.0 ms, BLAS 100.0 ms, blas taken"
    )


@pytest.mark.parametrize("with_gradients", [False, True])
def test_each_kind_multiplies_every_weight_of_its_own(with_gradients, monkeypatch):
    seen = []
    product = speed.linear

    def watched(x, weight, *, compute):
        seen.append((compute.gemm, weight.shape))
        return product(x, weight, compute=compute)

    monkeypatch.setattr(speed, "linear", watched)
    weights = [torch.randn(5, 3), torch.randn(4, 7)]
    found = time_gemm(weights, num_rows=6, with_gradients=with_gradients)
    assert set(seen) == {(kind, w.shape) for kind in ("exact", "blas") for w in weights}
    assert (found.num_rows, found.num_threads) == (6, torch.get_num_threads())
    assert found.exact_s > 0
    assert found.blas_s > 0


@pytest.mark.parametrize("slow", ["exact", "blas"])
def test_the_slower_kind_is_not_taken(slow, monkeypatch):
    clock = [0.0]

    def product(x, weight, *, compute):
        clock[0] += 2.0 if compute.gemm == slow else 1.0

    monkeypatch.setattr(speed, "linear", product)
    monkeypatch.setattr(speed, "perf_counter", lambda: clock[0])
    taken = time_gemm([torch.randn(5, 3)], num_rows=2, with_gradients=False).fastest
    assert taken == ("blas" if slow == "exact" else "exact")


def test_the_random_stream_is_left_alone():
    before = torch.get_rng_state()
    time_gemm([torch.randn(5, 3, generator=torch.Generator())], num_rows=2, with_gradients=True)
    assert torch.equal(torch.get_rng_state(), before)
