"""Memory that the engine gives back between rollouts: when it may, what it loses, and that tokens keep their bits."""

from pathlib import Path

import pytest
from helpers.fake_runner import fake_engine, run_until_idle
from helpers.planted_fault import planted_fault
from helpers.tiny_engine import prompt, reported, request, tiny_engine
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT

from zerogap.engine import ModelRunner, kv_memory
from zerogap.errors import EngineStateError
from zerogap.types import GenerateRequest, SamplingParams

IDS = tuple(1 + i % 9 for i in range(30))


def busy_core():
    """Two siblings in the middle of decoding."""
    core, runner = fake_engine()
    params = SamplingParams(n=2, max_new_tokens=12, ignore_eos=True, sampling_seed=5)
    core.add_request(GenerateRequest(input_ids=IDS, sampling_params=params, rid="a"))
    for _ in range(4):
        core.step()
    return core, runner


@pytest.mark.parametrize("mode", [None, "in_place"])
def test_keys_and_values_in_use_are_not_given_up(mode):
    core, _ = busy_core()
    if mode:
        core.pause_generation(mode)
    with pytest.raises(EngineStateError, match=r"2 running and 0 waiting .*'retract'"):
        core.release_memory_occupation()
    assert not core.is_released
    core.continue_generation()
    assert {o.finish_reason.kind for o in run_until_idle(core)} == {"length"}


@pytest.mark.parametrize("mode", ["retract", "abort"])
def test_a_pause_that_takes_the_pages_allows_it_and_no_token_changes(mode):
    expected = {(o.rid, o.index): o for o in run_until_idle(busy_core()[0])}
    core, runner = busy_core()
    core.pause_generation(mode)
    core.release_memory_occupation()
    assert core.is_released
    rows = runner.num_rows
    with pytest.raises(EngineStateError, match=r"released .*resume_memory_occupation"):
        core.continue_generation()
    core.step()
    core.resume_memory_occupation()
    assert not core.is_released
    core.step()
    assert runner.num_rows == rows, "a step ran in a pause"
    core.continue_generation()
    core.check_integrity()
    for output in run_until_idle(core):
        whole = expected[output.rid, output.index].output_ids.tolist()
        assert output.output_ids.tolist() == whole[: len(output.output_ids)]
        assert mode == "abort" or len(output.output_ids) == len(whole)


def test_requests_wait_while_memory_is_released():
    core, runner = fake_engine()
    core.release_memory_occupation()
    core.release_memory_occupation()
    core.add_request(
        GenerateRequest(input_ids=IDS, sampling_params=SamplingParams(max_new_tokens=3))
    )
    assert core.step() == []
    assert (core.num_waiting, runner.num_rows) == (1, 0)
    core.resume_memory_occupation()
    core.resume_memory_occupation()
    assert len(run_until_idle(core)) == 1


def test_a_release_with_a_waiting_request_needs_a_pause():
    core, _ = fake_engine()
    core.add_request(
        GenerateRequest(input_ids=IDS, sampling_params=SamplingParams(max_new_tokens=3))
    )
    with pytest.raises(EngineStateError, match="0 running and 1 waiting"):
        core.release_memory_occupation()


def test_nothing_finds_old_pages_and_what_is_held_stays():
    core, runner = fake_engine()
    again = GenerateRequest(input_ids=IDS, sampling_params=SamplingParams(max_new_tokens=1))

    def rows_of(request) -> int:
        before = runner.num_rows
        core.add_request(request)
        run_until_idle(core)
        return runner.num_rows - before

    def copy(rid):
        return GenerateRequest(input_ids=IDS, sampling_params=again.sampling_params, rid=rid)

    assert rows_of(copy("first")) == len(IDS)
    core.resume_memory_occupation()
    assert rows_of(copy("cached")) == 1
    core.release_memory_occupation()
    core.set_weight_version(0)
    assert core.flush_cache()
    core.resume_memory_occupation()
    assert rows_of(copy("released")) == len(IDS)
    core.check_integrity()


def test_calls_that_would_hang_are_refused():
    engine = tiny_engine()
    engine.release_memory_occupation()
    for call in (
        lambda: engine.generate([request()]),
        lambda: engine.score(prompt(5)),
    ):
        with pytest.raises(EngineStateError, match="resume_memory_occupation"):
            call()
    assert engine.is_idle
    engine.resume_memory_occupation()
    assert len(engine.generate([request()])) == 1


def test_tokens_have_the_same_bits_after_a_release():
    asked = [request(prompt(37, 3), n=2, sampling_seed=3), request(prompt(21), sampling_seed=6)]
    engine = tiny_engine()
    before = engine.generate(asked)
    score = engine.score(prompt(30))
    engine.release_memory_occupation()
    engine.resume_memory_occupation()
    again = [
        GenerateRequest(input_ids=r.input_ids, sampling_params=r.sampling_params) for r in asked
    ]
    EXACT.check(reported(engine.generate(again)), reported(before))
    EXACT.check(engine.score(prompt(30)), score)


STATM = Path("/proc/self/statm")
measures_memory = pytest.mark.skipif(
    not STATM.exists(), reason="resident memory is read from /proc"
)


@measures_memory
@pytest.mark.parametrize("forgets", [True, False])
def test_released_memory_goes_back_to_the_system(monkeypatch, forgets):
    monkeypatch.setattr(kv_memory, "_FORGETS", forgets)
    runner = ModelRunner(tiny_model(), num_pages=8192)
    size = runner._k_LPKHS.nbytes + runner._v_LPKSH.nbytes
    assert size == 2**26
    empty, place = resident_bytes(), runner._k_LPKHS.data_ptr()
    runner._k_LPKHS.fill_(1.0)
    runner._v_LPKSH.fill_(1.0)
    with planted_fault("nothing is given back"):
        check_used(0, since=empty)
    check_used(size, since=empty)
    runner.clear()
    check_used(0, since=empty)
    assert not runner._k_LPKHS[:, ::100].any()
    assert not forgets or runner._k_LPKHS.data_ptr() == place


@measures_memory
def test_a_cache_takes_up_the_memory_of_what_was_written():
    runner = ModelRunner(tiny_model(), num_pages=8192)
    empty = resident_bytes()
    runner._k_LPKHS[:, :512] = 1.0
    runner._v_LPKSH[:, :512] = 1.0
    size = runner._k_LPKHS.nbytes + runner._v_LPKSH.nbytes
    check_used(size // 16, since=empty)
    with planted_fault("every page is written"):
        runner._k_LPKHS.add_(1.0)
        check_used(size // 16, since=empty)


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096


def check_used(num_bytes: int, *, since: int) -> None:
    used = resident_bytes() - since
    assert abs(used - num_bytes) < 2**21, f"{used} bytes are used, not {num_bytes}"
