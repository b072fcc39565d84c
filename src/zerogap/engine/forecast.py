"""How many pages those that run will still need at once, for deciding whether another may start.

Starting too many means retractions: rows computed for nothing. Starting too few leaves the machine idle.
Sequences end at different times and give their pages back while others grow, so the answer is the peak of
the expected future use, not the sum of all growth (as in the past-future scheduler of LightLLM,
Gong et al., 2025).
"""

from collections.abc import Sequence as Sequences

import numpy as np

from zerogap.engine.sequence import Sequence, num_pages_for
from zerogap.kernels import PAGE_SIZE

_MIN_GROWTH = 32
"""Tokens that a sequence is always expected to grow by: less would start one now and retract it soon."""
_FIRST_USED_SHARE = 0.5
"""Share of max_new_tokens that completions are expected to use before any has ended."""
_USED_SHARE_RATE = 1 / 32
"""Weight of a completion that ends in the expected share."""


class Forecast:
    """Learns how long completions get, and guesses what is still to come."""

    def __init__(self) -> None:
        self._used_share = _FIRST_USED_SHARE

    def observe_end(self, sequence: Sequence) -> None:
        """A completion ended by itself."""
        if sequence.has_output:
            used_share = sequence.num_output / sequence.params.max_new_tokens
            self._used_share += _USED_SHARE_RATE * (used_share - self._used_share)

    def peak_growth(self, sequences: Sequences[Sequence]) -> int:
        """Most pages, beyond those held and allocated now, that the sequences will hold together."""
        growth = np.array([self._growth(sequence) for sequence in sequences], np.int64)
        private = np.array([_private_pages(sequence) for sequence in sequences], np.int64)
        order = np.argsort(-growth)
        growth, private = growth[order], private[order]
        # When the k-th longest is about to end, it and the longer ones have each grown by as much as it
        # will in all, and the shorter ones have given their pages back.
        returned = private.sum() - np.cumsum(private)
        needed = np.arange(1, len(growth) + 1) * growth - returned
        return max(0, int(needed.max(initial=0)))

    def _growth(self, sequence: Sequence) -> int:
        """Pages beyond those for the rows that are known today."""
        params, num_output = sequence.params, sequence.num_output
        expected = round(self._used_share * params.max_new_tokens) - num_output
        more = min(params.max_new_tokens - num_output, max(_MIN_GROWTH, expected))
        return num_pages_for(sequence.num_tokens + more) - num_pages_for(sequence.num_tokens)


def _private_pages(sequence: Sequence) -> int:
    """Pages that are free when the sequence ends; those of the prompt may be shared."""
    return num_pages_for(sequence.num_tokens) - sequence.num_prompt // PAGE_SIZE
