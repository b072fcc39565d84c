"""Reward shaping, before rewards are compared. B samples."""

import numpy as np

from zerogap.algorithms._shapes import Float, Int
from zerogap.errors import DataError


def overlong_penalties(
    num_tokens_B: Int[np.ndarray, "B"], *, max_tokens: int, buffer_tokens: int, penalty: float
) -> Float[np.ndarray, "B"]:
    """Penalty for long completions, to add to the reward: 0, then linearly down to -penalty at the limit. float64.

    DAPO, https://arxiv.org/abs/2503.14476, eq. 13. -penalty at ``max_tokens`` and past it, 0 up to ``max_tokens - buffer_tokens``.

    Args:
        num_tokens_B: tokens that the policy wrote.
        max_tokens: limit for a completion.
        buffer_tokens: length of the slope, below the limit.
        penalty: in units of reward.
    """
    if not 1 <= buffer_tokens <= max_tokens:
        msg = f"buffer_tokens = {buffer_tokens} of max_tokens = {max_tokens}: the slope must fit below the limit; set 1 to {max_tokens}"
        raise DataError(msg)
    into_buffer_B = (num_tokens_B - (max_tokens - buffer_tokens)) / buffer_tokens
    return 0.0 - penalty * into_buffer_B.clip(0.0, 1.0)
