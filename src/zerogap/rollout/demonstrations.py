"""Samples from prompts with reference answers: supervised losses use this instead of the collector.

A prompt gives one sample, its reference answer. Where a loss compares answers, it gives a group of two: the reference
answer with reward 1, named ``<group>/chosen``, then the rejected answer with reward 0, named ``<group>/rejected``.
Losses read the reward; names and order are for people.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerogap.data import PromptItem
from zerogap.errors import DataError
from zerogap.rollout.collect import Rollouts
from zerogap.types import Group, Sample

_NUM_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Makes samples of prompt items. Holds no state between calls: the same call gives the same samples."""

    encode: Callable[[PromptItem], Sequence[int]]
    """Prompt ids of an item, as in sampling and evaluation."""
    encode_answer: Callable[[Sequence[int], str], Sequence[int]]
    """(prompt ids, answer) -> ids of the answer with its end token."""
    compares_answers: bool
    """Whether each prompt gives two samples, the reference answer and the rejected one."""

    def __call__(self, items: Sequence[PromptItem], *, step: int) -> Rollouts:
        """The samples of the items, one group for each item, in their order.

        Args:
            items: prompts with answers; a prompt that occurs twice makes two groups.
            step: part of the group's id, as in the collector.

        Raises:
            DataError: an item lacks an answer, or cannot be encoded.
        """
        named = {f"train-{step:06d}-{place:04d}": item for place, item in enumerate(items)}
        groups = [
            Group(group_id=name, samples=self._samples(name, item)) for name, item in named.items()
        ]
        return Rollouts(groups=tuple(groups), items=named)

    def check(self, items: Sequence[PromptItem], *, max_tokens: int) -> int:
        """Encode every item before a run starts, so that no step fails on one. Returns the longest sample's length.

        Args:
            items: all training prompts of the run.
            max_tokens: limit of a prompt with its answer; the model's context length.

        Raises:
            DataError: items have no answer, cannot be encoded or are too long; one message lists several.
        """
        problems, longest = [], 0
        for item in items:
            try:
                length = max(map(len, self._samples(item.item_id, item)))
            except DataError as error:
                problems.append(str(error))
                continue
            longest = max(longest, length)
            if length > max_tokens:
                problems.append(f"prompt {item.item_id} has {length} tokens with its answer")
        if problems:
            listed = "\n  ".join(problems[:_NUM_SHOWN])
            more = f"\n  and {len(problems) - _NUM_SHOWN} more" if problems[_NUM_SHOWN:] else ""
            msg = f"{len(problems)} of {len(items)} training prompts give no answer to train on (at most {max_tokens} tokens fit the model); correct or remove them:\n  {listed}{more}"
            raise DataError(msg)
        return longest

    def _samples(self, group_id: str, item: PromptItem) -> tuple[Sample, ...]:
        if not self.compares_answers:
            return (self._sample(item, item.answer, "reference", group_id, "0", None),)
        return (
            self._sample(item, item.answer, "reference", group_id, "chosen", 1.0),
            self._sample(item, item.rejected, "rejected", group_id, "rejected", 0.0),
        )

    def _sample(
        self,
        item: PromptItem,
        answer: str | None,
        kind: str,
        group_id: str,
        name: str,
        reward: float | None,
    ) -> Sample:
        if answer is None:
            msg = f"prompt {item.item_id} has no {kind} answer, but this loss trains on it; add one, or leave the prompt out"
            raise DataError(msg)
        prompt_ids = self.encode(item)
        try:
            answer_ids = self.encode_answer(prompt_ids, answer)
        except DataError as error:
            msg = f"prompt {item.item_id}: {error}"
            raise DataError(msg) from error
        return Sample.demonstration(
            prompt_ids,
            answer_ids,
            group_id=group_id,
            rollout_id=f"{group_id}/{name}",
            reward=reward,
            text=answer,
        )
