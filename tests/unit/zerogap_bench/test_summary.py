from dataclasses import replace

import pytest

from zerogap_bench.flops import ModelShape, PromptWork, Work, decode_bytes
from zerogap_bench.gemm import Limit
from zerogap_bench.records import Decoding, Measured, PeerMeasured
from zerogap_bench.shapes import RunShape
from zerogap_bench.summary import summarise, summarise_decoding, summarise_peer

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
    return Limit(2, {"blas": dict.fromkeys(("qkv", "o", "gate_up", "down", "head"), rate)})


def run(seconds: float, before: float, after: float) -> Measured:
    return Measured(
        seconds=seconds,
        others_load=0.0,
        prompts=(PromptWork(3, 0, (10, 10)),),
        limits={"generate": (limit(before), limit(after))},
        phase_seconds={"generate": seconds},
        fma_gflops=(2 * before, 2 * after),
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


def test_a_peer_is_compared_with_the_run_beside_it():
    ours = [run(s, 10, 10) for s in (1.0, 2.0, 4.0)]
    peer = [PeerMeasured(seconds=s, others_load=None, peak_rss_gb=1.0) for s in (3.0, 10.0)]
    assert summarise_peer(SHAPE, peer, ours)["ratio"]["median"] == pytest.approx((3 + 5) / 2)


def test_a_phase_stands_under_the_limit_and_under_the_multiply_adds():
    work = {"generate": Work(body=6e9, head=2e9, attention=2e9)}
    phase = summarise(MODEL, SHAPE, [run(2.0, 10, 30)], lambda _run: work)["phases"]["generate"]
    # 10 GFLOP in 2 s; GEMMs at 20, multiply-adds at 40 GFLOP/s.
    assert phase["gflops"] == pytest.approx(5)
    assert phase["share_of_limit"] == pytest.approx(0.25)
    assert phase["share_of_fma_peak"] == pytest.approx(0.125)


def test_without_the_kernels_there_is_no_share_of_the_multiply_adds():
    work = {"generate": Work(body=1e9, head=0, attention=0)}
    found = summarise(MODEL, SHAPE, [replace(run(1.0, 9, 9), fma_gflops=None)], lambda _run: work)
    assert found["share_of_fma_peak"] is None
    assert found["phases"]["generate"]["share_of_fma_peak"] is None


def test_a_single_sequence_is_measured_by_the_bytes_it_reads():
    bytes_read = decode_bytes(MODEL, num_prompt=3, num_answer=10)
    single = replace(
        run(1.0, 10, 10),
        prompts=(PromptWork(3, 0, (10,)),),
        decoding=Decoding(bytes_read / 10e9, read_gb_s=(15.0, 25.0), copy_gb_s=(10.0, 15.0)),
    )
    found = summarise_decoding(MODEL, [single])
    assert found["gb_s"] == pytest.approx(10)
    assert found["share_of_read"] == pytest.approx(0.5)
    assert found["share_of_copy"] == pytest.approx(0.8)


def test_several_sequences_have_no_decoding():
    assert summarise_decoding(MODEL, [run(1.0, 10, 10)]) is None
