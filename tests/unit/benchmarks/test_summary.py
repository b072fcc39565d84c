import pytest
from measure.flops import ModelShape, PromptWork, Work
from measure.gemm import Limit
from measure.records import Measured, PeerMeasured
from measure.report import headline
from measure.shapes import RunShape
from measure.summary import summarise, summarise_peer

MODEL = ModelShape(
    hidden_size=8,
    intermediate_size=8,
    num_layers=2,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    vocab_size=16,
)
SHAPE = RunShape(1, 2, 10)


def limit(rate: float) -> Limit:
    return Limit(2, dict.fromkeys(("qkv", "o", "gate_up", "down", "head"), rate))


def run(seconds: float, before: float, after: float) -> Measured:
    return Measured(
        seconds=seconds,
        others_load=0.0,
        prompts=(PromptWork(3, 0, (10, 10)),),
        limits={"generate": (limit(before), limit(after))},
        peak_rss_gb=seconds,
        seconds_by_part={"compute": seconds},
    )


def test_each_run_is_measured_by_the_limit_beside_it():
    work = {"generate": Work(body=6e9, head=2e9, attention=2e9)}
    runs = [run(1.0, 30, 50), run(2.0, 10, 30), run(4.0, 10, 10)]
    found = summarise(MODEL, SHAPE, runs, lambda _run: work)
    # 10 GFLOP in 1, 2 and 4 s at limits of 40, 20 and 10.
    assert found["spread"]["share_of_limit"]["min"] == pytest.approx(0.25)
    assert found["share_of_limit"] == pytest.approx(0.25)
    assert found["limit_gflops"] == pytest.approx(20)
    assert found["limit_gflops_before"] == pytest.approx(10)
    assert found["limit_gflops_after"] == pytest.approx(30)


def test_a_report_has_the_medians_and_the_highest_memory():
    work = {"generate": Work(body=1e9, head=0, attention=0)}
    found = summarise(MODEL, SHAPE, [run(s, 10, 10) for s in (1.0, 2.0, 4.0)], lambda _run: work)
    assert found["tokens_per_s"] == 10
    assert found["peak_rss_gb"] == 4
    assert headline(found).keys() >= {"tokens_per_s", "share_of_limit", "limit_gflops", "peak_rss_gb"}  # fmt: skip


def test_a_peer_is_compared_with_the_run_beside_it():
    ours = [run(s, 10, 10) for s in (1.0, 2.0, 4.0)]
    peer = [PeerMeasured(seconds=s, others_load=None, peak_rss_gb=1.0) for s in (3.0, 10.0)]
    assert summarise_peer(SHAPE, peer, ours)["ratio"]["median"] == pytest.approx((3 + 5) / 2)
