"""What a sampling policy changes about rewarded samples: amounts added to rewards, and masks.

A shaping, such as DAPO's penalty for overlong completions, gives each sample an amount. The reward is then the verifier's plus all amounts. Each amount is also a part
of the reward under its own name, so the verifier's reward can be recovered from the sample.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from zerogap.errors import RewardFailed
from zerogap.types import Outcome, Sample

Shaping = Callable[[Sequence[Sample]], Sequence[float]]
"""From samples to the amount added to the reward of each, in order."""


def by_completion_len(amounts: Callable[[np.ndarray], np.ndarray]) -> Shaping:
    """A shaping from a function of lengths.

    Args:
        amounts: number of tokens that the policy wrote, int64 [B] -> amount added to the reward, [B].
    """

    def shaping(samples: Sequence[Sample]) -> list[float]:
        num_written = [sample.num_completion_tokens for sample in samples]
        return amounts(np.array(num_written, np.int64)).tolist()

    return shaping


def shaped(samples: Sequence[Sample], shapings: Mapping[str, Shaping]) -> list[Sample]:
    """The samples with every shaping added; samples without a reward stay unchanged.

    Raises:
        RewardFailed: a part of the verifier's reward has the name of a shaping.
    """
    found = list(samples)
    places = [place for place, sample in enumerate(samples) if sample.reward is not None]
    for name, shaping in shapings.items():
        amounts = shaping([found[place] for place in places])
        for place, amount in zip(places, amounts, strict=True):
            found[place] = _add(found[place], name, float(amount))
    return found


def mask_truncated(samples: Sequence[Sample]) -> list[Sample]:
    """The samples, those that the token limit ended with no token that trains.

    This is DAPO's overlong filtering (https://arxiv.org/abs/2503.14476, section 3.4: the loss of truncated samples is masked),
    done as TRL's ``mask_truncated_completions``: the reward of a masked sample still counts in its group's mean and standard
    deviation, and denominators that count samples, rollouts or groups still count it. Denominators that count tokens do not.
    """
    return [s.masked() if s.outcome is Outcome.TRUNCATED else s for s in samples]


def _add(sample: Sample, name: str, amount: float) -> Sample:
    assert sample.reward is not None
    if name in sample.reward_parts:
        msg = f"rollout {sample.rollout_id}: the reward function returned a part {name!r}, but a shaping has this name; rename the part"
        raise RewardFailed(msg)
    return sample.scored(sample.reward + amount, {**sample.reward_parts, name: amount})
