"""Which samples take part in a step, and in which of its updates. B samples as they were given."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zerogap.errors import DataError
from zerogap.types import Exclusion, Sample, exclusion_reason


@dataclass(frozen=True)
class Participants:
    """The samples of each update, decided from the samples alone, before anything is computed."""

    update_B: np.ndarray
    """int64 [B]: number of the update that each sample takes part in; -1 for none. A masked sample takes part without tokens: it
    counts in its group's statistics and in denominators."""
    num_updates: int
    excluded: Counter[Exclusion]
    """How many samples do not train, by reason."""
    first_B: np.ndarray
    """int64 [B]: the first sample of each sample's rollout that takes part; a sample that takes no part has itself."""

    @property
    def is_kept_B(self) -> np.ndarray:
        """Bool [B]: samples that take part, masked ones too."""
        return self.update_B >= 0

    @property
    def stands_for_rollout_B(self) -> np.ndarray:
        """Bool [B]: one sample a rollout that takes part, so that a group's baseline counts each rollout once."""
        return self.is_kept_B & (self.first_B == np.arange(len(self.first_B)))


def take_part(samples: Sequence[Sample], *, max_updates: int, vocab_limit: int) -> Participants:
    """Leave out samples that cannot train, and assign whole groups to updates, so that prompts stay shared.

    Every update has a group that trains; groups that are masked as a whole are spread over the updates.

    Args:
        samples: any order.
        max_updates: updates to spread the groups over, evenly; fewer if there are fewer groups.
        vocab_limit: ids at or past it do not exist.

    Raises:
        DataError: nothing trains, an id is outside the vocabulary, or samples with one rollout id are not of one rollout.
    """
    reasons = [exclusion_reason(sample) for sample in samples]
    excluded = Counter(reason for reason in reasons if reason is not None)
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    if not kept:
        msg = f"none of the {len(samples)} samples trains ({dict(excluded)}): there is no gradient; skip the step"
        raise DataError(msg)
    for i in kept:
        check_ids(samples[i], vocab_limit)
    masked = [i for i, reason in enumerate(reasons) if reason is Exclusion.MASKED]
    group_ids = list(dict.fromkeys(samples[i].group_id for i in kept))
    num_updates = min(max_updates, len(group_ids))
    update_of = _spread([samples[i].group_id for i in masked], num_updates)
    update_of |= _spread(group_ids, num_updates)
    update_B = np.full(len(samples), -1)
    for i in kept + masked:
        update_B[i] = update_of[samples[i].group_id]
    return Participants(update_B, num_updates, excluded, _first_of_rollout(samples, kept + masked))


def _first_of_rollout(samples: Sequence[Sample], kept: Sequence[int]) -> np.ndarray:
    """int64 [B]: see ``Participants.first_B``. A rollout has several samples if its context was cut: one group, one reward."""
    first_B, first_of = np.arange(len(samples)), dict[str, int]()
    for i in kept:
        sample = samples[i]
        first_B[i] = at = first_of.setdefault(sample.rollout_id, i)
        first = samples[at]
        if (sample.group_id, sample.reward) != (first.group_id, first.reward):
            msg = (
                f"two samples have rollout id {sample.rollout_id!r}, but one is of group {first.group_id!r} with reward {first.reward} and "
                f"the other of group {sample.group_id!r} with reward {sample.reward}: samples of one rollout share its prompt and its reward; "
                "give each rollout of a step an id of its own"
            )
            raise DataError(msg)
    return first_B


def _spread(group_ids: Sequence[str], num_updates: int) -> dict[str, int]:
    """The update of each group, in order and evenly."""
    distinct = list(dict.fromkeys(group_ids))
    chunks = np.array_split(np.arange(len(distinct)), num_updates)
    return {distinct[g]: number for number, chunk in enumerate(chunks) for g in chunk}


def check_ids(sample: Sample, vocab_limit: int) -> None:
    """Refuse a sample with ids outside the vocabulary."""
    if len(sample) and (largest := int(sample.token_ids.max())) >= vocab_limit:
        msg = f"rollout {sample.rollout_id}: token id {largest} is outside the vocabulary of {vocab_limit}; samples and model belong to different tokenizers"
        raise DataError(msg)
