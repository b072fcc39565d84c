"""Aborts, pauses and weight versions, over a fake runner."""

from dataclasses import replace

import pytest
from helpers.fake_runner import expected_tokens, fake_engine, run_until_idle

from zerogap.errors import EngineError, InvalidRequest, NumericsError
from zerogap.types import GenerateRequest, SamplingParams

PROMPT = tuple(1 + i % 9 for i in range(30))


def make_request(rid: str, *, prompt=PROMPT, **params) -> GenerateRequest:
    defaults = {"max_new_tokens": 12, "ignore_eos": True, "sampling_seed": 5}
    return GenerateRequest(
        input_ids=prompt, sampling_params=SamplingParams(**defaults | params), rid=rid
    )


def steps(core, count: int) -> list:
    return [output for _ in range(count) for output in core.step()]


@pytest.mark.parametrize(
    ("num_steps", "state"),
    [(0, "queued"), (1, "mid-chunk"), (7, "decoding")],
)
def test_an_abort_returns_what_was_drawn_exactly_once(num_steps, state):
    core, _ = fake_engine(max_running=2, max_scheduled_tokens=8)
    core.add_request(make_request("a"))
    steps(core, num_steps)
    core.abort_request("a")
    core.abort_request("a")
    (output,) = run_until_idle(core)
    assert output.finish_reason.kind == "abort"
    assert len(output.output_ids) == (4 if state == "decoding" else 0)
    assert output.output_ids.tolist() == drawn(len(output.output_ids))
    assert core.is_idle
    core.check_integrity()


def drawn(count: int) -> list[int]:
    ids = list(PROMPT)
    for _ in range(count):
        ids += expected_tokens(ids, 5, 0, 1)
    return ids[len(PROMPT) :]


def test_an_aborted_retracted_request_returns_what_it_had():
    core, _ = fake_engine()
    core.add_request(make_request("a"))
    steps(core, 4)
    core.pause_generation("retract")
    assert (core.num_running, core.num_waiting) == (0, 1)
    core.abort_request("a")
    (output,) = core.step()
    assert output.output_ids.tolist() == drawn(4)
    assert output.num_retractions == 1


def test_an_abort_of_held_back_siblings_leaves_the_leader():
    core, runner = fake_engine(max_running=2, max_scheduled_tokens=8)
    core.add_request(make_request("leader"))
    core.add_request(make_request("held", n=3))
    core.step()
    core.abort_request("held")
    outputs = run_until_idle(core)
    assert [o.finish_reason.kind for o in outputs] == ["abort"] * 3 + ["length"]
    assert runner.num_rows == len(PROMPT) + 11


def test_when_the_leader_is_aborted_another_computes_the_rest_of_the_prompt():
    core, runner = fake_engine(max_running=2, max_scheduled_tokens=16)
    core.add_request(make_request("leader"))
    core.add_request(make_request("next", max_new_tokens=1))
    core.step()
    core.abort_request("leader")
    outputs = run_until_idle(core)
    assert {o.rid: o.finish_reason.kind for o in outputs} == {"leader": "abort", "next": "length"}
    assert runner.num_rows == len(PROMPT), "the leader's page was computed again"


def test_abort_all_ends_everything_and_unknown_rids_are_ignored():
    core, _ = fake_engine(max_running=1)
    for rid in "abc":
        core.add_request(make_request(rid, n=2))
    steps(core, 3)
    core.abort_request("unknown")
    core.abort_request(abort_all=True)
    assert len(core.step()) == 6
    assert core.is_idle


def test_a_rid_must_be_matched_exactly():
    core, _ = fake_engine()
    core.add_request(make_request("r1"))
    core.add_request(make_request("r10"))
    core.abort_request("r1")
    outputs = run_until_idle(core)
    assert {o.rid: o.finish_reason.kind for o in outputs} == {"r1": "abort", "r10": "length"}


def test_a_second_live_request_of_one_rid_is_refused():
    core, _ = fake_engine()
    core.add_request(make_request("a"))
    with pytest.raises(InvalidRequest, match="request a is still open"):
        core.add_request(make_request("a"))
    run_until_idle(core)
    core.add_request(make_request("a"))


@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
def test_nothing_runs_in_a_pause_and_nothing_is_lost_by_it(mode):
    core, runner = fake_engine()
    core.add_request(make_request("a", n=2))
    steps(core, 4)
    core.pause_generation(mode)
    rows = runner.num_rows
    core.add_request(make_request("late", prompt=(7, 7, 7)))
    early = steps(core, 3)
    assert runner.num_rows == rows
    core.continue_generation()
    core.continue_generation()
    outputs = early + run_until_idle(core)
    assert sorted((o.rid, o.index) for o in outputs) == [("a", 0), ("a", 1), ("late", 0)]
    for output in outputs:
        is_aborted = output.rid == "a" and mode == "abort"
        assert output.finish_reason.kind == ("abort" if is_aborted else "length")


def test_retraction_in_a_pause_changes_no_token():
    core, _ = fake_engine()
    core.add_request(make_request("a"))
    for mode in ("retract", "in_place", "retract"):
        steps(core, 3)
        core.pause_generation(mode)
        core.continue_generation()
    (output,) = run_until_idle(core)
    assert output.output_ids.tolist() == drawn(12)
    assert output.num_retractions == 2


def test_a_second_pause_can_only_ask_for_more():
    core, _ = fake_engine()
    core.add_request(make_request("a"))
    steps(core, 2)
    core.pause_generation("in_place")
    core.pause_generation("retract")
    assert core.num_running == 0
    core.pause_generation("in_place")
    assert core.num_running == 0
    core.pause_generation("abort")
    assert core.is_idle
    with pytest.raises(InvalidRequest, match="'keep' is unknown"):
        core.pause_generation("keep")


def test_tokens_carry_the_version_of_the_weights_that_drew_them():
    core, runner = fake_engine()
    core.add_request(make_request("a"))
    steps(core, 4)
    runner.weight_version = 3
    core.set_weight_version(3)
    steps(core, 2)
    runner.weight_version = 9
    core.set_weight_version(9)
    (output,) = run_until_idle(core)
    assert output.weight_version.tolist() == [0] * 4 + [3] * 2 + [9] * 6


def test_nothing_computed_by_old_weights_is_shared_with_new_ones():
    core, runner = fake_engine()
    core.add_request(make_request("old"))
    run_until_idle(core)
    core.add_request(make_request("mixed"))
    steps(core, 3)
    runner.weight_version = 1
    core.set_weight_version(1)
    before = runner.num_rows
    core.add_request(make_request("new", max_new_tokens=1))
    new = [o for o in run_until_idle(core) if o.rid == "new"]
    # 9 rows to finish the running one, which goes on with its own pages and published none of them.
    assert runner.num_rows - before == len(PROMPT) + 9
    assert new[0].num_cached_tokens == 0
    core.add_request(make_request("again", max_new_tokens=1))
    (again,) = run_until_idle(core)
    assert again.num_cached_tokens == len(PROMPT) - 1


def test_a_prompt_half_computed_by_old_weights_starts_again():
    core, runner = fake_engine(max_running=4, max_scheduled_tokens=8)
    core.add_request(make_request("a", n=3, max_new_tokens=1))
    steps(core, 2)
    runner.weight_version = 1
    core.set_weight_version(1)
    outputs = run_until_idle(core)
    assert len(outputs) == 3
    assert all(o.weight_version[0] == 1 for o in outputs)
    assert runner.num_rows == 16 + len(PROMPT)
    assert core.stats.num_recomputed_tokens == 16


def test_siblings_that_have_not_forked_yet_compute_the_prompt_with_the_new_weights():
    core, runner = fake_engine(max_running=1)
    core.add_request(make_request("a", n=2, max_new_tokens=3))
    steps(core, 1)
    runner.weight_version = 1
    core.set_weight_version(1)
    outputs = run_until_idle(core)
    assert [o.weight_version.tolist() for o in outputs] == [[0, 1, 1], [1, 1, 1]]
    assert runner.num_rows == 2 * len(PROMPT) + 4


def test_a_flush_is_refused_while_sequences_hold_pages():
    core, runner = fake_engine()
    core.add_request(make_request("a"))
    assert core.flush_cache(), "a waiting request holds no page"
    steps(core, 2)
    assert not core.flush_cache()
    run_until_idle(core)
    assert core.flush_cache()
    before = runner.num_rows
    core.add_request(make_request("b", max_new_tokens=1))
    run_until_idle(core)
    assert runner.num_rows - before == len(PROMPT)


def test_a_version_below_zero_is_refused():
    core, _ = fake_engine()
    with pytest.raises(InvalidRequest, match="-1 is negative"):
        core.set_weight_version(-1)
    assert core.weight_version == 0


def test_only_a_prompt_without_new_tokens_ends_with_none():
    core, runner = fake_engine()
    core.add_request(make_request("a", max_new_tokens=0))
    (output,) = run_until_idle(core)
    assert (output.finish_reason.kind, len(output.output_ids)) == ("length", 0)
    assert output.weight_version.tolist() == []
    assert runner.num_rows == len(PROMPT)


def test_a_number_that_is_not_finite_ends_everything_and_poisons_nothing():
    core, runner = fake_engine()
    core.add_request(make_request("a"))
    steps(core, 3)
    run, runner.run = runner.run, fail
    with pytest.raises(NumericsError, match=r"weight version 0, a step that drew for \['a'\]"):
        core.step()
    runner.run = run
    (output,) = core.step()
    assert output.finish_reason.kind == "abort"
    assert len(output.output_ids) == 3
    core.check_integrity()
    core.add_request(make_request("b"))
    (output,) = run_until_idle(core)
    assert (output.num_cached_tokens, output.output_ids.tolist()) == (0, drawn(12))


def fail(batch):
    raise NumericsError("row 0 is NaN")


@pytest.mark.parametrize("error", [MemoryError("no room"), KeyboardInterrupt()])
def test_a_step_that_is_cut_off_ends_everything_and_poisons_nothing(error):
    core, runner = fake_engine()
    core.add_request(make_request("a", n=3))
    steps(core, 1)

    def cut_off(batch):
        assert batch.page_copies, "siblings fork in this step"
        raise error

    run, runner.run = runner.run, cut_off
    with pytest.raises(type(error)):
        core.step()
    runner.run = run
    outputs = core.step()
    assert [output.finish_reason.kind for output in outputs] == ["abort"] * 3
    assert "a step did not finish" in outputs[0].finish_reason.message
    core.check_integrity()
    core.add_request(make_request("b"))
    (output,) = run_until_idle(core)
    assert (output.num_cached_tokens, output.output_ids.tolist()) == (0, drawn(12))


@pytest.mark.parametrize(
    "damage",
    [
        lambda scheduler: scheduler.running.pop(),
        lambda scheduler: scheduler._cache.allocate(1),
        lambda scheduler: scheduler.running[0].append_pages([0]),
        lambda scheduler: setattr(scheduler.waiting[0], "num_pages", 1),
        lambda scheduler: scheduler._siblings.join(scheduler.running[0]),
    ],
)
def test_a_lost_page_or_request_is_noticed(damage):
    core, _ = fake_engine(max_running=2)
    core.add_request(make_request("a", n=3))
    steps(core, 3)
    core.check_integrity()
    damage(core._scheduler)
    with pytest.raises(EngineError, match="contradicts itself"):
        core.check_integrity()


def test_the_seed_of_a_request_without_one_depends_on_the_engines_seed_and_its_turn():
    seeds = []
    for _ in range(2):
        core, _ = fake_engine()
        for rid in "ab":
            core.add_request(make_request(rid, sampling_seed=None))
        seeds.append([o.seed for o in sorted(run_until_idle(core), key=lambda o: o.rid)])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


# ------------------------------------------------------------------ policies and adapters


def test_equal_prompts_under_two_adapters_share_no_pages():
    adapters = {("", ""), ("", "red"), ("", "blue")}
    core, _ = fake_engine(weights=frozenset(adapters))
    asked = [
        GenerateRequest(
            input_ids=tuple(range(1, 40)),
            adapter=adapter,
            sampling_params=SamplingParams(max_new_tokens=4, sampling_seed=1, n=2),
        )
        for adapter in ("", "red", "blue", "red")
    ]
    for request in asked:
        core.add_request(request)
    while not core.is_idle:
        held = {}
        for sequence in core._scheduler.running:
            held.setdefault(sequence.weights, set()).update(sequence.held_pages())
        assert sum(map(len, held.values())) == len(set().union(*held.values()))
        core.step()
        core.check_integrity()
    # One prompt is computed under each name, and found again under its own.
    assert core.stats.num_prefill_tokens == 3 * 39
    core.add_request(replace(asked[3], rid="again"))
    run_until_idle(core)
    assert core.stats.num_prefill_tokens == 3 * 39 + 1


@pytest.mark.parametrize("named", [{"policy": "other"}, {"adapter": "red"}])
def test_a_policy_or_adapter_that_is_not_loaded_is_refused_at_the_door(named):
    core, _ = fake_engine()
    with pytest.raises(InvalidRequest, match=next(iter(named.values()))):
        core.add_request(GenerateRequest(input_ids=(1, 2), **named))
    assert core.is_idle
