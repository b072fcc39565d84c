import math

import numpy as np
import pytest
import torch
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP

from zerogap.algorithms import value_surrogate
from zerogap.errors import NumericsError


def loop(values, old, returns, mask, clip):
    """(terms, gradient), one token at a time."""
    terms, slopes = np.zeros(len(mask)), np.zeros(len(mask))
    for t in np.flatnonzero(mask):
        terms[t], slopes[t] = (values[t] - returns[t]) ** 2 / 2, values[t] - returns[t]
        held = min(max(values[t], old[t] - clip), old[t] + clip) if clip else values[t]
        if (held - returns[t]) ** 2 / 2 > terms[t]:
            terms[t], slopes[t] = (held - returns[t]) ** 2 / 2, 0.0
    return terms, slopes


def ours(values, old, returns, mask, clip):
    values_T = torch.tensor(values, requires_grad=True)
    surrogate = value_surrogate(
        values_T, torch.tensor(old), torch.tensor(returns), torch.tensor(mask), value_clip=clip
    )
    surrogate.numerator_T.sum().backward()
    return surrogate, values_T.grad


@pytest.mark.parametrize("clip", [0.0, 0.2, 5.0])
def test_value_and_gradient_match_the_loop(clip):
    rng = np.random.default_rng(0)
    values, old, returns = rng.normal(size=(3, 60))
    mask = rng.random(60) < 0.7
    for column in (values, old, returns):
        column[~mask] = math.nan
    surrogate, gradient = ours(values, old, returns, mask, clip)
    FLOAT64_SAME_OP.check((surrogate.numerator_T, gradient), loop(values, old, returns, mask, clip))
    is_clipped = surrogate.is_clipped_T.numpy()
    EXACT.check(is_clipped & mask, (gradient.numpy() == 0) & mask)
    if 0 < clip < 1:
        assert 0 < is_clipped.sum() < mask.sum()
        wrong = loop(values, old, returns, mask, clip + 0.01)
        assert_notices(
            "another bound",
            lambda: FLOAT64_SAME_OP.check((surrogate.numerator_T, gradient), wrong),
        )


@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_nan_that_counts_is_refused(column):
    columns = np.zeros((3, 2))
    columns[column, 1] = math.nan
    with pytest.raises(NumericsError, match="of token 1 is nan"):
        ours(*columns, np.ones(2, bool), 0.2)
