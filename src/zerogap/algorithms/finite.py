"""Checks the inputs of every formula: masked slots are replaced before any arithmetic, all others must be finite.

Multiplying by a mask does not help, because NaN * 0 is NaN, in values and gradients. T tokens.
"""

from collections.abc import Callable

import numpy as np

from zerogap.algorithms._shapes import Bool, Float, Tensor
from zerogap.errors import NumericsError

MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here before exp, which might overflow; e**20 is far beyond any bound on a ratio."""


def name_by_index(token: int) -> str:
    """Name of a token by its index."""
    return f"token {token}"


def require_finite(
    values_T: Tensor, mask_T: Tensor, what: str, name_token: Callable[[int], str]
) -> Tensor:
    """``values_T`` with 0 at masked slots; raises NumericsError if another slot is not finite."""
    is_bad_T = mask_T & ~values_T.detach().isfinite()
    if is_bad_T.any():
        first = int(is_bad_T.nonzero()[0])
        raise _not_finite(what, name_token(first), values_T[first].item(), is_bad_T, mask_T)
    return values_T.where(mask_T, 0.0)


def finite_column(
    values_T: Float[np.ndarray, "T"],
    mask_T: Bool[np.ndarray, "T"],
    what: str,
    name_token: Callable[[int], str] = name_by_index,
) -> Float[np.ndarray, "T"]:
    """``require_finite`` for numpy: float64, 0 at masked slots."""
    is_bad_T = mask_T & ~np.isfinite(values_T)
    if is_bad_T.any():
        first = int(np.flatnonzero(is_bad_T)[0])
        raise _not_finite(what, name_token(first), float(values_T[first]), is_bad_T, mask_T)
    return np.where(mask_T, values_T, 0.0).astype(np.float64)


def _not_finite(
    what: str, name: str, value: float, is_bad_T: np.ndarray | Tensor, mask_T: np.ndarray | Tensor
) -> NumericsError:
    return NumericsError(
        f"the {what} of {name} is {value} ({int(is_bad_T.sum())} of {int(mask_T.sum())} trainable tokens are not "
        "finite): a loss needs finite numbers; look at the sample, the weights and the learning rate"
    )
