"""What a rollout is made of beside the policy's turns: the first prompt, replies between turns, and rewards.

Ids travel, text never does: an environment gives its replies as ids, and what the policy drew is never encoded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from zerogap.data import PromptItem
from zerogap.errors import EnvironmentFailed, GenerationFailed, RewardFailed
from zerogap.rollout.rewards import RewardRequest, RewardResult, Rewards
from zerogap.types import Outcome, Sample, Source


class Session:
    """One rollout while it goes on, for its environment."""

    def __init__(
        self,
        item: PromptItem,
        sample: Sample,
        *,
        seed: int,
        vocab_limit: int,
        generate: Callable[[Sample, int], Awaitable[Sample | None]],
    ) -> None:
        """Begin behind the first turn.

        Args:
            item: the prompt.
            sample: the prompt's ids and the first turn.
            seed: see the attribute.
            vocab_limit: ids from here on mean nothing.
            generate: (record, number of the turn) -> the record with the policy's turn, None if there is no room for one.
        """
        self.item = item
        self.sample = sample
        """All turns so far."""
        self.seed = seed
        """Of the environment's own randomness: another for every rollout, and none that sampling uses."""
        self.is_over = False
        """Whether no further turn is possible: the last one failed, or the context is full."""
        self.generator_error: Exception | None = None
        """What the generator raised: no fault of the environment."""
        self._vocab_limit, self._generate = vocab_limit, generate

    async def turn(self, reply_ids: Sequence[int]) -> Sample:
        """Append a reply and the policy's next turn. Every exception may be let pass.

        Args:
            reply_ids: the environment's tokens behind the policy's last turn, such as a template's header.

        Returns:
            The record with both.

        Raises:
            EnvironmentFailed: ids that the tokenizer does not have.
            GenerationFailed: the turn failed, or there is no room for it. The rollout ends as its record says.
        """
        outside = [i for i in reply_ids if not 0 <= i < self._vocab_limit]
        if outside:
            msg = f"the environment replied with the ids {outside[:5]}, and the tokenizer has {self._vocab_limit}; encode the reply with the policy's tokenizer"
            raise EnvironmentFailed(msg)
        if not self.is_over:
            asked = self.sample.append(reply_ids, source=Source.ENVIRONMENT)
            try:
                turned = await self._generate(asked, len(self.sample.turns))
            except Exception as error:
                self.generator_error = error
                raise
            self.is_over = turned is None or not turned.outcome.is_valid
            self.sample = turned or replace(self.sample, outcome=Outcome.TRUNCATED)
        if self.is_over:
            msg = f"rollout {self.sample.rollout_id} has no further turn: {self.sample.outcome}; end it"
            raise GenerationFailed(msg)
        return self.sample


class Environment(Protocol):
    """Owns what happens in the rollouts of a prompt. Called for many prompts at once, from one asyncio loop."""

    def prompt_ids(self, item: PromptItem) -> Sequence[int]:
        """What the first turn continues; the rollouts of a group share it."""
        ...

    async def play(self, session: Session) -> None:
        """All turns of a rollout behind its first. What this raises makes the rollout a failed one, with no reward."""
        ...

    async def reward(
        self, item: PromptItem, samples: Sequence[Sample]
    ) -> Sequence[RewardResult | RewardFailed]:
        """A reward for each rollout of a group that ended well, in order.

        What this raises is a failure of all of them.
        """
        ...


class SingleTurn:
    """The environment of a question with one answer: no reply, and each answer is rewarded by itself."""

    def __init__(self, encode: Callable[[PromptItem], Sequence[int]], rewards: Rewards) -> None:
        """Keep what every prompt uses; ``rewards`` are closed by whoever built them."""
        self._encode, self._rewards = encode, rewards

    def prompt_ids(self, item: PromptItem) -> Sequence[int]:
        """See ``Environment``."""
        return self._encode(item)

    async def play(self, session: Session) -> None:
        """The first turn was the whole rollout."""

    async def reward(
        self, item: PromptItem, samples: Sequence[Sample]
    ) -> list[RewardResult | RewardFailed]:
        """See ``Environment``."""
        asked = [RewardRequest(completion=s.text, item=item, sample=s) for s in samples]
        return await asyncio.gather(*map(self._rewards.reward, asked))
