"""Rollouts of several turns: their outcomes when all goes well, and when something fails."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from helpers.fake_generator import FakeGenerator, letters
from helpers.two_turns import TwoTurns

from zerogap.data import PromptItem
from zerogap.errors import EngineError, GenerationFailed, RequestTooLong
from zerogap.rollout import Collector, RewardResult, run_async
from zerogap.rollout import collect as collect_room
from zerogap.types import FinishReason, Outcome, SamplingParams, Source

ITEMS = [PromptItem(item_id=f"i{k}", question=f"q{k}") for k in range(3)]


def collect(environment, generator=None, *, group_size=4):
    collector = Collector(
        generator or FakeGenerator(),
        environment,
        decode=lambda ids: "".join(map(chr, ids)),
        vocab_limit=259,
        sampling=SamplingParams(max_new_tokens=8, temperature=0.7),
        group_size=group_size,
        seed=0,
    )
    return run_async(collector.collect(ITEMS, step=2))


def outcomes(rollouts):
    return [[sample.outcome for sample in group.samples] for group in rollouts.groups]


def is_second(request) -> bool:
    return len(request.input_ids) > 2


class Failing(FakeGenerator):
    """Raises for second turns."""

    error: Exception

    async def submit(self, request, *, with_progress=False):
        if is_second(request):
            raise self.error
        async for update in super().submit(request):
            yield update


def test_two_turns_are_one_sample_whose_ids_are_never_encoded_again():
    generator = FakeGenerator()
    rollouts = collect(TwoTurns(), generator)
    seconds = {r.input_ids: r for r in generator.requests if is_second(r)}
    for group, item in zip(rollouts.groups, ITEMS, strict=True):
        assert len(group.samples) == 4
        for sample in group.samples:
            ids, prompt = sample.token_ids.tolist(), [*item.question.encode()]
            first = ids[2:7]
            assert ids[:10] == [*prompt, *first, 5, first[-1], 7]
            assert ids[10:] == letters(seconds[tuple(ids[:10])], 0)
            wanted = [Source.PROMPT] * 2 + [Source.POLICY] * 5 + [Source.ENVIRONMENT] * 3 + [Source.POLICY] * 5  # fmt: skip
            assert sample.source.tolist() == wanted
            assert [(turn.start, turn.end) for turn in sample.turns] == [(2, 7), (10, 15)]
            assert (sample.loss_mask == (sample.source == Source.POLICY)).all()
            assert sample.outcome == Outcome.COMPLETED
            assert sample.reward is not None


def test_a_group_begins_as_one_request_and_no_two_turns_share_noise():
    class Watching(TwoTurns):
        def __init__(self):
            self.seeds = []

        async def play(self, session):
            self.seeds.append(session.seed)
            await super().play(session)

    generator, environment = FakeGenerator(), Watching()
    collect(environment, generator)
    assert sorted(r.sampling_params.n for r in generator.requests) == [1] * 12 + [4] * 3
    seeds = [r.sampling_params.sampling_seed for r in generator.requests] + environment.seeds
    assert len(set(seeds)) == len(seeds) == 27


def test_rewards_see_the_whole_group():
    for group in collect(TwoTurns()).groups:
        assert np.isclose(sum(sample.reward for sample in group.samples), 0)
        assert len({sample.reward for sample in group.samples}) > 1


def test_an_environment_that_fails_costs_its_rollout_and_no_other():
    class Failing(TwoTurns):
        async def play(self, session):
            if session.sample.rollout_id.endswith("/1"):
                raise OSError("no sandbox")
            if session.sample.rollout_id.endswith("/2"):
                await session.turn([300])
            await super().play(session)

    rollouts = collect(Failing())
    for group in rollouts.groups:
        good, raised, unknown, other = group.samples
        assert (good.outcome, other.outcome) == (Outcome.COMPLETED,) * 2
        assert raised.outcome == unknown.outcome == Outcome.ENVIRONMENT_FAILED
        assert raised.outcome_detail.startswith("OSError: no sandbox (test_environment.py, line ")
        assert "[300]" in unknown.outcome_detail
        assert raised.reward is unknown.reward is None
        assert raised.num_loss_tokens == unknown.num_loss_tokens == 0
        assert len(raised.turns) == 1


class Stubborn(TwoTurns):
    """Swallows everything and asks again."""

    def __init__(self):
        self.refused = []

    async def play(self, session):
        for _ in range(3):
            try:
                await session.turn([5])
            except Exception as error:  # noqa: BLE001 - what must not help
                self.refused.append(type(error))


def test_what_the_generator_raises_stops_the_step_whatever_the_environment_does():
    generator = Failing()
    generator.error = EngineError("device lost")
    for environment in (TwoTurns(), Stubborn()):
        with pytest.raises(EngineError, match="device lost"):
            collect(environment, generator)


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({"finish_reason": FinishReason("abort", message="paused")}, Outcome.ABORTED),
        ({"output_ids": np.array([97, 300, 98, 99, 257], np.int32)}, Outcome.TAMPERED),
        ({"prompt_ids": np.array([256], np.int32)}, Outcome.TAMPERED),
        (None, Outcome.INFRASTRUCTURE_FAILED),
    ],
)
def test_a_later_turn_that_fails_is_the_rollouts_outcome(changed, outcome):
    def change(output):
        if len(output.prompt_ids) == 2:
            return output
        return None if changed is None else replace(output, **changed)

    for environment in (TwoTurns(), Stubborn()):
        rollouts = collect(environment, FakeGenerator(change=change))
        assert outcomes(rollouts) == [[outcome] * 4] * 3
        assert all(s.reward is None and not s.num_loss_tokens for s in rollouts.samples)
    assert set(environment.refused) == {GenerationFailed}


def test_a_rollout_without_room_for_another_turn_is_truncated_and_rewarded():
    generator = Failing()
    generator.error = RequestTooLong("17 tokens are too many")
    rollouts = collect(TwoTurns(), generator)
    assert outcomes(rollouts) == [[Outcome.TRUNCATED] * 4] * 3
    for sample in rollouts.samples:
        assert len(sample) == 7
        assert sample.num_loss_tokens == 5
        assert sample.reward is not None


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        (lambda samples: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda samples: [RewardResult(1.0)], "1 rewards for 4 rollouts"),
        (lambda samples: [RewardResult(float("nan"))] * len(samples), "not a finite number"),
    ],
)
def test_a_reward_that_fails_is_never_a_reward(given, detail):
    class Failing(TwoTurns):
        async def reward(self, item, samples):
            return given(samples)

    rollouts = collect(Failing())
    assert outcomes(rollouts) == [[Outcome.VERIFIER_FAILED] * 4] * 3
    assert all(detail in sample.outcome_detail for sample in rollouts.samples)


def test_only_so_many_groups_go_on_at_once(monkeypatch):
    monkeypatch.setattr(collect_room, "_MAX_GROUPS", 2)
    alive, most = set(), []

    class Watching(TwoTurns):
        async def play(self, session):
            alive.add(session.sample.group_id)
            most.append(len(alive))
            for _ in range(5):
                await asyncio.sleep(0)
            await super().play(session)
            alive.discard(session.sample.group_id)

    assert outcomes(collect(Watching())) == [[Outcome.COMPLETED] * 4] * 3
    assert max(most) == 2


def test_a_batch_can_be_waited_for_where_a_loop_runs_already():
    async def notebook():
        return collect(TwoTurns())

    rollouts = asyncio.run(notebook())
    assert [s.token_ids.tolist() for s in rollouts.samples] == [
        s.token_ids.tolist() for s in collect(TwoTurns()).samples
    ]
