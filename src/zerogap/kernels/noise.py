"""Sampling noise: depends on the seed, the sibling and the position, never on what is computed beside it."""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014): a bijection with good avalanche."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def position_uniform(seed: np.ndarray, index: np.ndarray, position: np.ndarray) -> np.ndarray:
    """One uniform number in [0, 1) for each (seed, sibling index, completion position).

    Args:
        seed: int64 [R] request seeds (any sign).
        index: int64 [R] number of the sibling within the request.
        position: int64 [R] position of the token in the completion, from 0.

    Returns:
        float64 [R] with 53 random bits.
    """
    with np.errstate(over="ignore"):
        state = _mix(np.asarray(seed, np.int64).astype(np.uint64) + _GOLDEN)
        state = _mix(
            state ^ (np.asarray(index, np.int64).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        )
        state = _mix(
            state + (np.asarray(position, np.int64).astype(np.uint64) + np.uint64(1)) * _GOLDEN
        )
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
