import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT

from zerogap.algorithms import overlong_penalties
from zerogap.errors import DataError


def test_the_penalty_rises_within_the_buffer():
    lengths = np.array([0, 80, 81, 90, 100, 130])
    found = overlong_penalties(lengths, max_tokens=100, buffer_tokens=20, penalty=2.0)
    expected = np.array([0.0, 0.0, -0.1, -1.0, -2.0, -2.0])
    EXACT.check(found, expected)
    late = overlong_penalties(lengths, max_tokens=100, buffer_tokens=19, penalty=2.0)
    assert_notices("another buffer", lambda: EXACT.check(late, expected))


@pytest.mark.parametrize("buffer_tokens", [0, 101])
def test_a_buffer_outside_the_limit_is_refused(buffer_tokens):
    with pytest.raises(DataError, match="the slope must fit below the limit; set 1 to 100"):
        overlong_penalties(np.array([5]), max_tokens=100, buffer_tokens=buffer_tokens, penalty=1.0)
