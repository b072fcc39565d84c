"""Scheduling over a fake runner, which counts the rows it computes and notices wrong pages."""

import numpy as np
import pytest
from helpers.fake_runner import EOS, expected_tokens, fake_engine, run_until_idle

from zerogap.types import GenerateRequest, SamplingParams


def make_request(input_ids, *, n=1, max_new_tokens=5, seed=1, rid=None) -> GenerateRequest:
    params = SamplingParams(n=n, max_new_tokens=max_new_tokens, sampling_seed=seed, ignore_eos=True)
    return GenerateRequest(
        input_ids=input_ids, sampling_params=params, **({"rid": rid} if rid else {})
    )


def text(length: int, kind: int = 1) -> tuple[int, ...]:
    return tuple(1 + (i * i * kind) % 11 for i in range(length))


def run(core, *requests) -> dict[tuple[str, int], object]:
    for request in requests:
        core.add_request(request)
    outputs = run_until_idle(core)
    core.check_integrity()
    return {(output.rid, output.index): output for output in outputs}


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("length", [1, 5, 15, 16, 17, 33, 48])
def test_a_groups_prompt_is_computed_once(length, prefix_cache):
    core, runner = fake_engine(prefix_cache=prefix_cache)
    outputs = run(core, make_request(text(length), n=6, max_new_tokens=4))
    stats = core.stats
    assert runner.num_rows == length + stats.num_decode_tokens
    assert stats.num_prefill_tokens == length
    assert stats.num_decode_tokens + stats.num_shared_decode_tokens == 6 * 3
    assert sorted(o.num_cached_tokens for o in outputs.values()) == [0] + [length] * 5


def test_a_prompt_in_chunks_is_computed_once_for_its_group():
    core, runner = fake_engine(max_running=4, max_scheduled_tokens=8)
    run(core, make_request(text(50), n=4, max_new_tokens=1))
    assert runner.num_rows == 50


def test_requests_with_one_prompt_are_siblings_like_one_request_of_many():
    core, runner = fake_engine()
    outputs = run(core, *[make_request(text(20), seed=seed, max_new_tokens=1) for seed in range(5)])
    assert runner.num_rows == 20
    for (rid, _), output in outputs.items():
        seed = output.seed
        assert output.output_ids.tolist() == expected_tokens(text(20), seed, 0, 1), rid


def test_siblings_beyond_max_running_fork_later_from_the_kept_prompt():
    core, runner = fake_engine(max_running=2)
    run(core, make_request(text(20), n=7, max_new_tokens=3))
    assert runner.num_rows == 20 + 7 * 2


def test_a_shared_beginning_is_computed_once_even_when_all_arrive_together():
    core, runner = fake_engine()
    run(core, *[make_request((*text(32), 12 + i), max_new_tokens=1) for i in range(4)])
    assert runner.num_rows == 32 + 4


def test_sequences_that_share_nothing_start_in_one_step():
    core, _ = fake_engine()
    for kind in range(2, 6):
        core.add_request(make_request((kind, *text(20))))
    core.step()
    assert (core.num_running, core.num_waiting) == (4, 0)


@pytest.mark.parametrize("length", [2, 5, 16, 17, 40])
def test_an_exact_repetition_recomputes_only_the_last_token(length):
    core, runner = fake_engine()
    run(core, make_request(text(length), max_new_tokens=1))
    assert runner.num_rows == length
    again = run(core, make_request(text(length), max_new_tokens=1))
    assert runner.num_rows == length + 1
    assert [o.num_cached_tokens for o in again.values()] == [length - 1]


def test_the_next_turn_finds_prompt_and_completion():
    core, runner = fake_engine()
    (first,) = run(core, make_request(text(20), max_new_tokens=10)).values()
    conversation = (*text(20), *first.output_ids.tolist(), 9, 9, 9)
    before = runner.num_rows
    run(core, make_request(conversation, max_new_tokens=1))
    # The last drawn token was never fed back, so it is computed now, with the three new ones.
    assert runner.num_rows - before == 4


def test_a_step_computes_no_more_rows_than_its_budget():
    core, runner = fake_engine(max_running=4, max_scheduled_tokens=10)
    for kind in range(2, 7):
        core.add_request(make_request((kind, *text(30)), n=2, max_new_tokens=6))
    while not core.is_idle:
        before = runner.num_rows
        core.step()
        assert runner.num_rows - before <= 10


def test_decoding_goes_on_while_a_long_prompt_is_computed():
    core, _ = fake_engine(max_running=4, max_scheduled_tokens=8)
    core.add_request(make_request(text(4), max_new_tokens=20))
    core.step()
    core.add_request(make_request(text(100, kind=3), max_new_tokens=1))
    for _ in range(5):
        core.step()
    assert core.stats.num_sampled_tokens == 6


def test_the_youngest_is_retracted_and_keeps_what_was_drawn():
    core, runner = fake_engine(num_pages=8, max_running=3)
    requests = [
        make_request((kind, *text(15)), max_new_tokens=60, rid=f"{kind}") for kind in (2, 3, 4)
    ]
    outputs = run(core, *requests)
    assert core.stats.num_retractions > 0
    assert outputs["2", 0].num_retractions == 0
    for request in requests:
        output = outputs[request.rid, 0]
        assert output.output_ids.tolist() == expected_tokens_without_eos(request)
        assert (output.output_log_probs == -(output.output_ids + 1)).all()
    assert runner.num_rows == core.stats.num_computed_tokens
    assert core.stats.num_sampled_tokens == 180, "a kept token was reported again"


def expected_tokens_without_eos(request: GenerateRequest) -> list[int]:
    ids, params = list(request.input_ids), request.sampling_params
    while len(ids) < len(request.input_ids) + params.max_new_tokens:
        ids += expected_tokens(ids, params.sampling_seed, 0, 1)
    return ids[len(request.input_ids) :]


def test_a_sequence_that_needs_the_whole_cache_runs_alone():
    core, _ = fake_engine(num_pages=4, max_running=3)
    full = 4 * 16 + 1
    requests = [make_request((kind, *text(19)), max_new_tokens=full - 20, n=2) for kind in (2, 3)]
    outputs = run(core, *requests)
    assert {len(o.output_ids) for o in outputs.values()} == {full - 20}


def test_siblings_that_wait_for_pages_recompute_their_prompt_rather_than_hang():
    core, _ = fake_engine(num_pages=3, max_running=8)
    outputs = run(core, make_request(text(40), n=3, max_new_tokens=9))
    assert len(outputs) == 3


def test_idle_cached_pages_make_room_for_new_sequences():
    core, _ = fake_engine(num_pages=4)
    for kind in range(2, 9):
        run(core, make_request((kind, *text(40)), max_new_tokens=3))
    assert core.stats.num_retractions == 0


def test_end_of_sequence_ends_a_sibling_and_not_the_others():
    core, _ = fake_engine()
    params = SamplingParams(n=40, max_new_tokens=30, sampling_seed=0)
    request = GenerateRequest(input_ids=text(10), sampling_params=params)
    outputs = run(core, request)
    kinds = {o.finish_reason.kind for o in outputs.values()}
    assert kinds == {"stop", "length"}
    for output in outputs.values():
        is_stop = output.finish_reason.kind == "stop"
        assert (EOS in output.output_ids) == is_stop
        assert output.output_ids.tolist() == expected_tokens(text(10), 0, output.index, 30)


def test_the_fake_notices_a_page_that_was_not_copied(monkeypatch):
    from zerogap.engine.plan import StepPlan

    core, _ = fake_engine()
    core.add_request(make_request(text(20), n=3, max_new_tokens=5))
    add = StepPlan.add

    def add_without_copies(self, sequence, num_rows):
        self.page_copies.clear()
        add(self, sequence, num_rows)

    monkeypatch.setattr(StepPlan, "add", add_without_copies)
    with pytest.raises(AssertionError, match="positions"):
        run_until_idle(core)


def test_prompts_in_many_orders_share_pages_and_lose_none():
    rng = np.random.default_rng(3)
    core, _ = fake_engine(num_pages=24, max_running=6, max_scheduled_tokens=20)
    requests = [
        make_request(
            text(int(rng.integers(1, 60)), kind=int(rng.integers(1, 4))), n=3, max_new_tokens=25
        )
        for _ in range(12)
    ]
    outputs = run(core, *requests)
    assert len(outputs) == 36
    assert core.flush_cache()
    core.check_integrity()
