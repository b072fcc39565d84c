"""What surrounds the policy's turns in a rollout: the first prompt, the replies between turns, and the rewards.

Replies are ids, never text: what the policy drew is never decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from zerogap.data import PromptItem
from zerogap.errors import EnvironmentFailed, GenerationFailed, RewardFailed
from zerogap.rollout.rewards import RewardRequest, RewardResult, Rewards
from zerogap.types import Outcome, Sample, Source


class Session:
    """A rollout in progress, as its environment sees it."""

    def __init__(
        self,
        item: PromptItem,
        sample: Sample,
        *,
        seed: int,
        vocab_limit: int,
        generate: Callable[[Sample, int], Awaitable[Sample | None]],
    ) -> None:
        """Start after the first turn.

        Args:
            item: the prompt.
            sample: the prompt's ids and the first turn.
            seed: see the attribute.
            vocab_limit: ids from here on are outside the vocabulary.
            generate: (sample, number of the turn) -> the sample with the policy's turn; None if there is no room.
        """
        self.item = item
        self.sample = sample
        """All turns so far."""
        self.seed = seed
        """For the environment's own randomness: every rollout has another, and sampling uses none of them."""
        self.is_over = False
        """Whether no further turn is possible: the last one failed, or the context is full."""
        self.generator_error: Exception | None = None
        """The exception of the generator, if any: it stops the step, whatever the environment does."""
        self._vocab_limit, self._generate = vocab_limit, generate

    async def turn(self, reply_ids: Sequence[int]) -> Sample:
        """Append a reply and the policy's next turn. An environment need not catch any of the exceptions.

        Args:
            reply_ids: the environment's tokens after the policy's last turn, such as a template's header.

        Returns:
            The sample with both.

        Raises:
            EnvironmentFailed: the reply has ids that the tokenizer does not have.
            GenerationFailed: the turn failed, or there is no room for it. The sample's outcome says which.
        """
        outside = [i for i in reply_ids if not 0 <= i < self._vocab_limit]
        if outside:
            msg = f"the environment replied with the ids {outside[:5]}, but the tokenizer has {self._vocab_limit} ids; encode the reply with the policy's tokenizer"
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
            msg = f"rollout {self.sample.rollout_id} can have no further turn: {self.sample.outcome}; return from play()"
            raise GenerationFailed(msg)
        return self.sample


class Environment(Protocol):
    """Directs the rollouts of a prompt. Called for many prompts at once, from one asyncio loop."""

    def prompt_ids(self, item: PromptItem) -> Sequence[int]:
        """The ids that the first turn continues; the rollouts of a group share them."""
        ...

    async def play(self, session: Session) -> None:
        """Play all turns after the first. If this raises, the rollout has failed and gets no reward."""
        ...

    async def reward(
        self, item: PromptItem, samples: Sequence[Sample]
    ) -> Sequence[RewardResult | RewardFailed]:
        """A reward for each rollout of a group that ended well, in order.

        If this raises, all of them have failed.
        """
        ...


class SingleTurn:
    """The environment of prompts with one answer: it sends no reply, and the group's answers are rewarded together."""

    def __init__(self, encode: Callable[[PromptItem], Sequence[int]], rewards: Rewards) -> None:
        """Keep what every prompt uses; the builder of ``rewards`` closes them."""
        self._encode, self._rewards = encode, rewards

    def prompt_ids(self, item: PromptItem) -> Sequence[int]:
        """See ``Environment``."""
        return self._encode(item)

    async def play(self, session: Session) -> None:
        """The first turn was the whole rollout."""

    async def reward(
        self, item: PromptItem, samples: Sequence[Sample]
    ) -> Sequence[RewardResult | RewardFailed]:
        """See ``Environment``."""
        asked = [RewardRequest(completion=s.text, item=item, sample=s) for s in samples]
        return await self._rewards.reward(asked)
