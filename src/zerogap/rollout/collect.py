"""From prompts to scored groups: all that happens to one batch, the same for training and evaluation.

The first turn of a group is one request for ``group_size`` completions. From there each rollout goes on by itself, as
its environment directs, and becomes a sample with an outcome. Rollouts that ended well get a reward. A failed one keeps
its reason as the outcome and gets no reward:

* tampered: an id that the tokenizer does not have, or another prompt than the one sent;
* aborted: the generator was told to stop it;
* infrastructure_failed: the generator did not return the completion;
* environment_failed: the environment raised between turns;
* verifier_failed: the reward function raised, took too long or returned a non-finite value.

An exception of the generator, or a log-prob that is missing or impossible, cannot be blamed on a sample: it stops the
step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

from zerogap.data import PromptItem
from zerogap.errors import GenerationFailed, RequestTooLong, RewardFailed
from zerogap.rollout.environment import Environment, Session
from zerogap.rollout.generator import Generator
from zerogap.rollout.noise import noise_seed
from zerogap.rollout.outcomes import sample_of, tampering
from zerogap.rollout.reward_checks import checked_result, described
from zerogap.rollout.rewards import RewardResult
from zerogap.types import (
    GenerateOutput,
    GenerateRequest,
    Group,
    Outcome,
    Sample,
    SamplingParams,
)

_MAX_GROUPS = 1024
"""Most groups whose rollouts go on at the same time."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class CollectProgress:
    """How many rollouts of a batch have been drawn."""

    num_ended: int
    """Rollouts whose last turn has ended."""
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The groups of one batch, in the order of its prompts."""

    groups: tuple[Group, ...]
    items: Mapping[str, PromptItem]
    """The prompt of each group, by group id."""

    @property
    def samples(self) -> list[Sample]:
        """All samples, failed ones too."""
        return [sample for group in self.groups for sample in group.samples]

    def map_samples(self, change: Callable[[Sequence[Sample]], Sequence[Sample]]) -> Rollouts:
        """The same groups with changed samples; ``change`` gets the samples of one group, in order."""
        groups = tuple(replace(g, samples=tuple(change(g.samples))) for g in self.groups)
        return Rollouts(groups=groups, items=self.items)

    @property
    def outcome_counts(self) -> dict[Outcome, int]:
        """Samples under each outcome; every outcome has an entry."""
        counts = Counter(sample.outcome for sample in self.samples)
        return {outcome: counts[outcome] for outcome in Outcome}


@dataclass(frozen=True)
class Collector:
    """Draws and rewards rollouts. Holds no state between batches: the same call gives the same samples."""

    generator: Generator
    """Continues prompts."""
    environment: Environment
    """Directs what happens between the policy's turns, and rewards rollouts."""
    _: KW_ONLY
    decode: Callable[[Sequence[int]], str]
    """Text of completion ids, for generators that return no text."""
    vocab_limit: int
    """Ids from here on are outside the vocabulary."""
    sampling: SamplingParams
    """How completions are drawn; ``n`` and ``sampling_seed`` are set here."""
    group_size: int
    """Rollouts of a prompt."""
    seed: int
    """The run's; with step and place it fixes the noise of each prompt."""

    async def collect(
        self,
        items: Sequence[PromptItem],
        *,
        step: int,
        purpose: str = "train",
        on_progress: Callable[[CollectProgress], None] | None = None,
    ) -> Rollouts:
        """``draw``, then ``reward``. Arguments and errors as there."""
        drawn = await self.draw(items, step=step, purpose=purpose, on_progress=on_progress)
        return await self.reward(drawn)

    async def draw(
        self,
        items: Sequence[PromptItem],
        *,
        step: int,
        purpose: str = "train",
        on_progress: Callable[[CollectProgress], None] | None = None,
    ) -> Rollouts:
        """``group_size`` rollouts of each prompt, without rewards.

        Args:
            items: prompts; a prompt that occurs twice makes two groups with different noise.
            step: with ``purpose`` and the place in ``items`` it gives the group's id and the seed of its noise.
            purpose: keeps the ids and noise of training and evaluation apart.
            on_progress: called when a rollout ends.

        Raises:
            GenerationFailed: the generator returned a completion that was not requested.
            Exception: any exception of the generator; nothing of the batch is kept.
        """
        named = {f"{purpose}-{step:06d}-{place:04d}": item for place, item in enumerate(items)}
        room, ended = asyncio.Semaphore(_MAX_GROUPS), itertools.count(1)
        total = len(items) * self.group_size

        def on_ended() -> None:
            if on_progress is not None:
                on_progress(CollectProgress(num_ended=next(ended), num_samples=total))

        async def draw_group(group_id: str, item: PromptItem) -> Group:
            async with room:
                return await self._draw_group(group_id, item, on_ended)

        groups = await _together(draw_group(*one) for one in named.items())
        return Rollouts(groups=tuple(groups), items=named)

    async def reward(self, drawn: Rollouts) -> Rollouts:
        """The same samples with their rewards, or with the reason why they have none.

        Args:
            drawn: from ``draw``; failed samples are not rewarded.
        """
        groups = await _together(
            self._reward_group(group, drawn.items[group.group_id]) for group in drawn.groups
        )
        return Rollouts(groups=tuple(groups), items=drawn.items)

    async def _draw_group(
        self, group_id: str, item: PromptItem, on_ended: Callable[[], None]
    ) -> Group:
        seed = noise_seed(self.seed, group_id, item.item_id)
        request = GenerateRequest(
            input_ids=tuple(self.environment.prompt_ids(item)),
            sampling_params=replace(self.sampling, n=self.group_size, sampling_seed=seed),
        )

        async def play(index: int, output: GenerateOutput | None) -> Sample:
            first = sample_of(
                request, output, group_id=group_id, index=index, vocab_limit=self.vocab_limit
            )
            sample = await self._play(item, first, index) if first.outcome.is_valid else first
            on_ended()
            return sample

        playing: dict[int, asyncio.Task[Sample]] = {}
        async with (
            asyncio.TaskGroup() as tasks,
            aclosing(self.generator.submit(request)) as updates,
        ):
            async for update in updates:
                output = update.output
                if output is None:
                    continue
                if output.rid != request.rid or output.index in playing or output.index >= self.group_size:  # fmt: skip
                    msg = f"the generator returned completion {output.index} of request {output.rid}, which was not requested or has come back before; return each of the {self.group_size} completions of request {request.rid} exactly once"
                    raise GenerationFailed(msg)
                playing[output.index] = tasks.create_task(play(output.index, self._with_text(output)))  # fmt: skip
            for index in set(range(self.group_size)) - playing.keys():
                playing[index] = tasks.create_task(play(index, None))
        samples = [playing[index].result() for index in range(self.group_size)]
        return Group(group_id=group_id, samples=tuple(samples))

    async def _play(self, item: PromptItem, first: Sample, index: int) -> Sample:
        """The rollout after its first turn."""

        def seed_of(turn: int) -> int:
            return noise_seed(self.seed, first.group_id, item.item_id, sibling=index, turn=turn)

        async def generate(asked: Sample, turn: int) -> Sample | None:
            return await self._next_turn(asked, seed_of(turn))

        # The first turn uses the group's noise, so the sibling's own seed of turn 0 is free.
        session = Session(
            item, first, seed=seed_of(0), vocab_limit=self.vocab_limit, generate=generate
        )
        try:
            await self.environment.play(session)
        except Exception as error:  # noqa: BLE001 - an environment may raise anything; it becomes a typed outcome
            if session.generator_error is None and not session.is_over:
                return session.sample.failed(Outcome.ENVIRONMENT_FAILED, str(described(error)))
        # Even if the environment caught it.
        if session.generator_error is not None:
            raise session.generator_error
        return session.sample

    async def _next_turn(self, asked: Sample, seed: int) -> Sample | None:
        """``asked`` with the policy's next turn; None if there is no room for one."""
        request = GenerateRequest(
            input_ids=tuple(asked.token_ids.tolist()),
            sampling_params=replace(self.sampling, n=1, sampling_seed=seed),
        )
        outputs: list[GenerateOutput] = []
        try:
            async with aclosing(self.generator.submit(request)) as updates:
                outputs += [u.output async for u in updates if u.output is not None]
        except RequestTooLong:
            return None
        if len(outputs) != 1 or outputs[0].rid != request.rid:
            detail = (
                f"the generator returned {len(outputs)} outputs for a request of one completion"
            )
            return asked.failed(Outcome.INFRASTRUCTURE_FAILED, detail)
        output = self._with_text(outputs[0])
        if problem := tampering(request, output, self.vocab_limit):
            return asked.failed(Outcome.TAMPERED, problem)
        return asked.append_output(output)

    async def _reward_group(self, group: Group, item: PromptItem) -> Group:
        samples = list(group.samples)
        places = [place for place, sample in enumerate(samples) if sample.outcome.is_valid]
        results = await self._results(item, [samples[place] for place in places])
        for place, result in zip(places, results, strict=True):
            samples[place] = _with_reward(samples[place], result)
        return replace(group, samples=tuple(samples))

    async def _results(
        self, item: PromptItem, samples: list[Sample]
    ) -> Sequence[RewardResult | RewardFailed]:
        try:
            results = await self.environment.reward(item, samples)
        except Exception as error:  # noqa: BLE001 - an environment may raise anything; it becomes a typed outcome
            return [described(error)] * len(samples)
        if len(results) != len(samples):
            msg = f"the environment returned {len(results)} rewards for {len(samples)} rollouts"
            return [RewardFailed(msg)] * len(samples)
        return results

    def _with_text(self, output: GenerateOutput) -> GenerateOutput:
        if output.text is not None:
            return output
        return replace(output, text=self.decode(output.output_ids.tolist()))


async def _together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results, in order. The first exception cancels the rest and is raised unchanged."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
    return [task.result() for task in tasks]


def _with_reward(sample: Sample, result: RewardResult | RewardFailed) -> Sample:
    try:
        reward = checked_result(result)
    except RewardFailed as error:
        return sample.failed(Outcome.VERIFIER_FAILED, str(described(error)))
    return sample.scored(reward.value, reward.parts)
