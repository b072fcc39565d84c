"""What is added to rewards after the verifier has spoken, such as DAPO's punishment of overlong completions.

A shaping gives each sample an amount. The reward is then the verifier's plus all amounts, and each amount is a part
of the reward under its own name, so that what the verifier said can be read off the record.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from zerogap.errors import RewardFailed
from zerogap.types import Sample

Shaping = Callable[[Sequence[Sample]], Sequence[float]]
"""What is added to the reward of each sample, in order."""


def by_completion_len(amounts: Callable[[np.ndarray], np.ndarray]) -> Shaping:
    """A shaping from a function of lengths.

    Args:
        amounts: tokens that the policy wrote, int64 [B] -> what that adds to the reward, [B].
    """

    def shaping(samples: Sequence[Sample]) -> list[float]:
        num_written = [sample.num_completion_tokens for sample in samples]
        return amounts(np.array(num_written, np.int64)).tolist()

    return shaping


def shaped(samples: Sequence[Sample], shapings: Mapping[str, Shaping]) -> list[Sample]:
    """The samples with every shaping added; those without a reward are as they were.

    Raises:
        RewardFailed: the verifier has a part of a shaping's name.
    """
    found = list(samples)
    places = [place for place, sample in enumerate(samples) if sample.reward is not None]
    for name, shaping in shapings.items():
        amounts = shaping([found[place] for place in places])
        for place, amount in zip(places, amounts, strict=True):
            found[place] = _add(found[place], name, float(amount))
    return found


def _add(sample: Sample, name: str, amount: float) -> Sample:
    assert sample.reward is not None
    if name in sample.reward_parts:
        msg = f"rollout {sample.rollout_id}: the reward function gave a part {name!r}, which is the name of what is added after it; call the part something else"
        raise RewardFailed(msg)
    return sample.scored(sample.reward + amount, {**sample.reward_parts, name: amount})
