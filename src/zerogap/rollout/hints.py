"""What a teacher reads in place of a sample's prompt: the question with a hint, for self-distillation.

Whether the teacher is the policy or another model, only the hint makes it know more. SDFT (https://arxiv.org/abs/2601.19897)
gives it a demonstration, SDPO (https://arxiv.org/abs/2601.20802) a rollout of the same group that succeeded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from zerogap.algorithms import HintConfig
from zerogap.data import PromptItem
from zerogap.errors import DataError
from zerogap.rollout.collect import Rollouts
from zerogap.types import Group, Sample, exclusion_reason

_NUM_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Hinted:
    """Samples with their teacher's prompts."""

    rollouts: Rollouts
    num_trainable: int
    """Samples with tokens that train."""
    num_hinted: int
    """Those that the teacher has a hint for."""
    num_too_long: int
    """Those whose hint does not fit the model's context: the teacher does not score them."""


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Gives each sample its ``teacher_prompt_ids``. Holds no state: the same samples get the same."""

    config: HintConfig
    encode: Callable[[PromptItem, Callable[[str], str]], Sequence[int]]
    """(item, change of its user message) -> prompt ids, otherwise as the policy's."""
    max_tokens: int
    """The model's context length."""

    def __call__(self, rollouts: Rollouts) -> Hinted:
        """The samples, each with the prompt that its teacher reads, if it has one.

        Args:
            rollouts: rewarded by the task, before any shaping.
        """
        groups, num_too_long = [], 0
        for group in rollouts.groups:
            item = rollouts.items[group.group_id]
            # Most members of a group have the same hint.
            encode, samples = cache(partial(self._encode, item)), []
            for sample in group.samples:
                hint = self._hint(item, group, sample)
                ids = None if hint is None else encode(hint)
                is_too_long = ids is not None and self._length(ids, sample) > self.max_tokens
                num_too_long += is_too_long
                samples.append(replace(sample, teacher_prompt_ids=None if is_too_long else ids))
            groups.append(replace(group, samples=tuple(samples)))
        changed = Rollouts(groups=tuple(groups), items=rollouts.items)
        trainable = [s for s in changed.samples if exclusion_reason(s) is None]
        return Hinted(
            rollouts=changed,
            num_trainable=len(trainable),
            num_hinted=sum(s.teacher_prompt_ids is not None for s in trainable),
            num_too_long=num_too_long,
        )

    def check(self, items: Iterable[PromptItem], *, max_new_tokens: int) -> None:
        """Encode every hint that is known before a run starts, so that no step fails on one.

        Raises:
            DataError: prompts have no answer, cannot have a hint, or are too long with it; one message names several.
        """
        problems, num_items = [], 0
        for item in items:
            num_items += 1
            if self.config.kind == "answer" and item.answer is None:
                problems.append(f"{item.item_id} has no reference answer")
                continue
            text = item.answer if self.config.kind == "answer" else ""
            length = len(self._encode(item, text or "")) + max_new_tokens
            if length > self.max_tokens:
                problems.append(f"{item.item_id} has {length} tokens with its completion")
        if problems:
            more = ", ..." if len(problems) > _NUM_SHOWN else ""
            msg = f"{len(problems)} of {num_items} prompts cannot have a hint for the teacher (at most {self.max_tokens} tokens fit): {'; '.join(problems[:_NUM_SHOWN])}{more}; remove them, shorten teacher.hint.template, or lower rollout.sampling.max_new_tokens"
            raise DataError(msg)

    def _hint(self, item: PromptItem, group: Group, sample: Sample) -> str | None:
        if exclusion_reason(sample) is not None:
            return None
        return item.answer if self.config.kind == "answer" else self._success(group, sample)

    def _success(self, group: Group, sample: Sample) -> str | None:
        """The text of the first rollout of the group that succeeded, other than the sample's own."""
        for other in group.samples:
            is_own = other.rollout_id == sample.rollout_id
            if not is_own and other.reward is not None and other.reward >= self.config.min_reward:
                return other.text
        return None

    def _encode(self, item: PromptItem, hint: str) -> tuple[int, ...]:
        return tuple(self.encode(item, partial(self.config.render, hint=hint)))

    @staticmethod
    def _length(prompt_ids: Sequence[int], sample: Sample) -> int:
        return len(prompt_ids) + len(sample) - sample.num_prompt_tokens
