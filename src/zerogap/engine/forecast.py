"""How many more pages the running sequences will need at once, to decide whether another may start.

Starting too many causes retractions: rows computed for nothing. Starting too few leaves cores idle. Sequences end at
different times and give their pages back while others grow, so the answer is the peak of the expected future use, not
the sum of all growth (as in the past-future scheduler of LightLLM, Gong et al., 2025).
"""

from collections.abc import Sequence as Sequences

import numpy as np

from zerogap.engine.sequence import Sequence, num_pages_for
from zerogap.kernels import PAGE_SIZE

_MIN_GROWTH = 32
"""Every sequence is expected to grow by at least so many tokens: with less, one would start and soon be retracted."""
_FIRST_USED_SHARE = 0.5
"""Share of max_new_tokens that completions are expected to use before any has ended."""
_USED_SHARE_RATE = 1 / 32
"""Weight of one ended completion in the running mean of the used share."""


class Forecast:
    """Learns how long completions get, and predicts how much the running ones will grow."""

    def __init__(self) -> None:
        self._used_share = _FIRST_USED_SHARE

    def observe_end(self, sequence: Sequence) -> None:
        """A completion ended without an abort."""
        if sequence.num_output:
            used_share = sequence.num_output / sequence.params.max_new_tokens
            self._used_share += _USED_SHARE_RATE * (used_share - self._used_share)

    def peak_growth(self, sequences: Sequences[Sequence]) -> int:
        """The most pages that the sequences together will hold beyond those they hold now."""
        growth = np.array([self._growth(sequence) for sequence in sequences], np.int64)
        private = np.array([_private_pages(sequence) for sequence in sequences], np.int64)
        order = np.argsort(-growth)
        growth, private = growth[order], private[order]
        # When the sequence with the k-th largest growth is about to end, it and the k - 1 before it have each grown
        # by its growth, and the others have given their pages back.
        returned = private.sum() - np.cumsum(private)
        needed = np.arange(1, len(growth) + 1) * growth - returned
        return max(0, int(needed.max(initial=0)))

    def _growth(self, sequence: Sequence) -> int:
        """Pages to add to those for the known tokens."""
        params, num_output = sequence.params, sequence.num_output
        expected = round(self._used_share * params.max_new_tokens) - num_output
        more = min(params.max_new_tokens - num_output, max(_MIN_GROWTH, expected))
        return num_pages_for(sequence.num_tokens + more) - num_pages_for(sequence.num_tokens)


def _private_pages(sequence: Sequence) -> int:
    """Pages that become free when the sequence ends; full pages of the prompt may be shared."""
    return num_pages_for(sequence.num_tokens) - sequence.num_prompt // PAGE_SIZE
