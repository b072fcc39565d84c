import pytest

from zerogap_bench.flops import ModelShape, forward_work
from zerogap_bench.gemm import Limit, harmonic_mean, limit_gflops, measure_limit, share_of_limit

SHAPE = ModelShape(
    hidden_size=8,
    intermediate_size=8,
    num_layers=2,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    vocab_size=16,
)


def test_a_mean_of_rates_is_weighted_by_flops_and_harmonic():
    assert harmonic_mean({"a": 30, "b": 10}, {"a": 10, "b": 10 / 7}) == pytest.approx(4)


def test_a_product_without_work_does_not_count():
    assert harmonic_mean({"a": 30, "b": 0}, {"a": 10, "b": 1}) == pytest.approx(10)


def limit_at(rate: float) -> Limit:
    return Limit(4, {"blas": dict.fromkeys(("qkv", "o", "gate_up", "down", "head"), rate)})


def test_the_limit_takes_the_faster_library_for_each_product():
    slow_head = {"qkv": 1.0, "head": 2.0}
    slow_qkv = {"qkv": 3.0, "head": 1.0}
    assert Limit(4, {"blas": slow_head, "zerogap": slow_qkv}).rates == {"qkv": 3.0, "head": 2.0}


def test_the_limit_is_the_mean_of_before_and_after():
    work = forward_work(SHAPE, num_rows=4, num_head_rows=1, num_keys=10)
    found = limit_gflops(SHAPE, {"all": work}, {"all": (limit_at(10.0), limit_at(30.0))})
    assert found == pytest.approx(20)


def test_phases_are_each_measured_by_their_own_limit():
    work = forward_work(SHAPE, num_rows=4, num_head_rows=1, num_keys=10)
    limits = {"generate": [limit_at(2.0)], "train": [limit_at(4.0)]}
    found = limit_gflops(SHAPE, {"generate": work, "train": work}, limits)
    assert found == pytest.approx(2 / (1 / 2.0 + 1 / 4.0))


def test_a_share_is_flops_over_time_over_limit():
    assert share_of_limit(3e9, seconds=6.0, limit=2.0) == pytest.approx(0.25)


def test_every_product_of_the_model_is_measured():
    limit = measure_limit(SHAPE, num_rows=8, seconds_a_shape=0.0)
    assert set(limit.rates) == {"qkv", "o", "gate_up", "down", "head"}
    assert all(rate > 0 for rate in limit.rates.values())
    assert set(limit.by_library) == {"blas", "zerogap"}
