"""A toy environment of two turns, in ids: it answers the policy's first turn with tokens of its own."""

from collections.abc import Sequence

import numpy as np

from zerogap.data import PromptItem
from zerogap.rollout import RewardResult, Session
from zerogap.types import Sample, Source


class TwoTurns:
    """Replies with the last id of the first turn between two marks, and rewards whom the group's mean lags behind."""

    def prompt_ids(self, item: PromptItem) -> Sequence[int]:
        return [*item.question.encode()]

    async def play(self, session: Session) -> None:
        await session.turn(self.reply(session.sample))

    @staticmethod
    def reply(sample: Sample) -> list[int]:
        return [5, int(sample.token_ids[-1]), 7]

    async def reward(self, item: PromptItem, samples: Sequence[Sample]) -> list[RewardResult]:
        written = [sample.token_ids[sample.source == Source.POLICY] for sample in samples]
        variety = [len(set(ids.tolist())) for ids in written]
        return [RewardResult(float(v - np.mean(variety))) for v in variety]
