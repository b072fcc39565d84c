"""Whatever is done to an engine in whatever order: no page and no request is lost, no token changes."""

import numpy as np
import pytest
from helpers.examples import examples
from helpers.fake_runner import EOS, expected_tokens, fake_engine, run_until_idle
from helpers.planted_fault import assert_notices
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from zerogap.engine import loop
from zerogap.errors import EngineStateError
from zerogap.types import GenerateOutput, GenerateRequest, SamplingParams


class EngineMachine(RuleBasedStateMachine):
    """Prompts are beginnings of two texts, so that they share pages, end inside pages and repeat."""

    rids = Bundle("rids")

    @initialize(
        num_pages=st.integers(7, 14),
        max_running=st.integers(1, 5),
        extra_budget=st.integers(0, 20),
        prefix_cache=st.booleans(),
    )
    def build(self, num_pages, max_running, extra_budget, prefix_cache):
        self.core, self.runner = fake_engine(
            num_pages=num_pages,
            max_running=max_running,
            max_scheduled_tokens=max_running + extra_budget,
            prefix_cache=prefix_cache,
        )
        self.num_pages, self.num_duplicates = num_pages, 0
        self.accepted: dict[tuple[str, int], GenerateRequest] = {}
        self.outputs: dict[tuple[str, int], GenerateOutput] = {}

    @rule(
        target=rids,
        text=st.integers(1, 2),
        length=st.integers(1, 50),
        n=st.integers(1, 4),
        max_new_tokens=st.one_of(st.just(0), st.integers(20, 60)),
        seed=st.integers(0, 3),
    )
    def add(self, text, length, n, max_new_tokens, seed):
        params = SamplingParams(n=n, max_new_tokens=max_new_tokens, sampling_seed=seed)
        prompt = [1 + (i * i * text) % 7 for i in range(length)]
        request = GenerateRequest(input_ids=tuple(prompt), sampling_params=params)
        self.core.add_request(request)
        for index in range(n):
            self.accepted[request.rid, index] = request
        return request.rid

    @rule(count=st.one_of(st.integers(1, 4), st.integers(5, 20)))
    def step(self, count):
        for _ in range(count):
            self._collect(self.core.step())

    @rule(rid=consumes(rids))
    def abort(self, rid):
        self.core.abort_request(rid)
        self.core.abort_request(rid)

    @rule(
        mode=st.sampled_from(["retract", "in_place", "retract", "in_place", "abort"]),
        continues=st.booleans(),
    )
    def pause(self, mode, continues):
        self.core.pause_generation(mode)
        num_rows = self.runner.num_rows
        self._collect(self.core.step())
        assert self.runner.num_rows == num_rows, "a step ran in a pause"
        if continues and not self.core.is_released:
            self.core.continue_generation()

    @precondition(lambda self: self.core.is_paused and not self.core.is_released)
    @rule()
    def continue_generation(self):
        self.core.continue_generation()

    @rule()
    def new_weights(self):
        self.runner.weight_version += 1
        self.core.set_weight_version(self.runner.weight_version)

    @rule(is_busy=st.booleans())
    def new_weights_in_an_update(self, is_busy):
        self.core.begin_weight_update()
        num_rows = self.runner.num_rows
        if is_busy and not (self.core.is_paused or self.core.is_released or self.core.is_idle):
            with pytest.raises(EngineStateError, match="has not ended"):
                self.core.step()
        assert self.runner.num_rows == num_rows, "a step ran on half an update"
        self.runner.weight_version += 1
        self.core.end_weight_update(self.runner.weight_version)

    @precondition(lambda self: not self.core.num_running)
    @rule()
    def flush(self):
        assert self.core.flush_cache()

    @precondition(lambda self: not self.core.num_running)
    @rule(mode=st.sampled_from(["retract", "abort"]), resumes=st.booleans())
    def release(self, mode, resumes):
        if not self.core.is_idle:
            self.core.pause_generation(mode)
        self.core.release_memory_occupation()
        self._collect(self.core.step())
        if resumes:
            self.core.resume_memory_occupation()

    @rule()
    def resume(self):
        self.core.resume_memory_occupation()

    @precondition(lambda self: len(self.accepted) > len(self.outputs) + 12)
    @rule()
    def finish(self):
        self.core.resume_memory_occupation()
        self.core.continue_generation()
        self._collect(run_until_idle(self.core))
        assert self.outputs.keys() == self.accepted.keys(), "a request was lost"

    @invariant()
    def is_whole(self):
        if hasattr(self, "core"):
            self.core.check_integrity()
            self._check_duplicates()

    def teardown(self):
        if hasattr(self, "core"):
            self.finish()
            assert self.core.flush_cache()
            self.core.check_integrity()
            assert self.core._scheduler._cache.pool.num_free == self.num_pages, "a page was lost"

    def _collect(self, outputs):
        for output in outputs:
            key = (output.rid, output.index)
            assert key not in self.outputs, f"{key} was answered twice"
            self.outputs[key] = output
            self._check(output, self.accepted[key])

    def _check_duplicates(self):
        first_of = {}
        for sequence in [s for s in self.core._scheduler.running if s.branch]:
            first = first_of.setdefault(sequence.branch, sequence)
            for what in (known_ids, self.runner.keys):
                assert what(sequence).tolist() == what(first).tolist(), "duplicates differ"
            self.num_duplicates += sequence is not first

    def _check(self, output, request):
        params = request.sampling_params
        expected = expected_tokens(
            request.input_ids, params.sampling_seed, output.index, params.max_new_tokens
        )
        ids = output.output_ids.tolist()
        assert ids == expected[: len(ids)], "a disturbance changed a token"
        assert (output.output_log_probs == -(output.output_ids + 1)).all()
        if output.finish_reason.kind != "abort":
            assert len(ids) == len(expected)
            is_stop = bool(ids) and ids[-1] == EOS
            assert output.finish_reason.kind == ("stop" if is_stop else "length")
        assert len(output.weight_version) == len(ids)
        assert (np.diff(output.weight_version) >= 0).all()


def known_ids(sequence):
    return sequence.token_ids[: sequence.num_tokens]


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=30, deadline=None
)


@pytest.mark.parametrize("seed", range(30))
def test_a_long_random_life(seed):
    """The same rules, many more of them in a row and with the engine always busy."""
    rng = np.random.default_rng(seed)
    machine = EngineMachine()
    machine.build(
        num_pages=int(rng.integers(7, 14)),
        max_running=int(rng.integers(1, 6)),
        extra_budget=int(rng.integers(0, 20)),
        prefix_cache=bool(rng.random() < 0.8),
    )
    for _ in range(120):
        _random_operation(machine, rng)
        machine.is_whole()
    machine.teardown()


def _life_with_duplicates(seed: int) -> EngineMachine:
    rng = np.random.default_rng(seed)
    machine = EngineMachine()
    machine.build(
        num_pages=int(rng.integers(12, 40)),
        max_running=int(rng.integers(4, 13)),
        extra_budget=int(rng.integers(0, 20)),
        prefix_cache=bool(rng.random() < 0.8),
    )
    for _ in range(40):
        _random_operation(machine, rng)
        machine.is_whole()
        if rng.random() < 0.2:
            machine.add(
                text=int(rng.integers(1, 3)),
                length=int(rng.choice([5, 16, 31, 33])),
                n=int(rng.integers(2, 9)),
                max_new_tokens=int(rng.integers(10, 60)),
                seed=0,
            )
    machine.teardown()
    return machine


def test_duplicates_have_the_same_tokens_and_keys_whatever_happens_to_them(monkeypatch):
    lives = [_life_with_duplicates(seed) for seed in range(15)]
    assert sum(machine.num_duplicates for machine in lives) > 100
    stats = [machine.core.stats for machine in lives]
    assert sum(s.num_shared_decode_tokens for s in stats) > 200
    assert sum(s.num_retractions for s in stats) > 50
    monkeypatch.setattr(loop, "new_branch", lambda: 1)
    assert_notices(
        "siblings stay in one branch whatever they draw", lambda: _life_with_duplicates(0)
    )


def _random_operation(machine: EngineMachine, rng: np.random.Generator) -> None:
    alive = [key for key in machine.accepted if key not in machine.outputs]
    kind = rng.choice(["step", "add", "weights", "pause", "abort"], p=[0.6, 0.18, 0.07, 0.09, 0.06])
    if kind == "step":
        machine.step(int(rng.integers(1, 5)))
    elif kind == "add" or not alive:
        machine.add(
            text=int(rng.integers(1, 3)),
            length=int(rng.integers(1, 50)),
            n=int(rng.integers(1, 5)),
            max_new_tokens=int(rng.integers(0, 60)),
            seed=int(rng.integers(0, 4)),
        )
    elif kind == "weights":
        machine.new_weights()
    elif kind == "pause":
        machine.pause(str(rng.choice(["retract", "in_place"])), continues=True)
    else:
        machine.abort(alive[int(rng.integers(len(alive)))][0])
