"""A loss of the user's: ``loss.kind = "import"``."""

from typing import Any, Literal

from pydantic import Field

from zerogap.algorithms.losses.base import RatioLoss
from zerogap.algorithms.terms import LossTerms, Surrogate
from zerogap.algorithms.user_function import call_user_function
from zerogap.errors import DataError
from zerogap.section import TomlValue


class ImportedLoss(RatioLoss):
    """Your own function: ``function(terms: LossTerms, **params)`` returns the loss of each token, float64 [T] with gradient.

    It may return a ``Surrogate`` instead, which also says where a bound decided. docs/algorithms.md has an example.
    """

    kind: Literal["import"] = "import"
    """Which objective."""
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """``module:function``, importable from the working directory."""
    params: dict[str, TomlValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    def surrogate(self, terms: LossTerms) -> Surrogate:
        """See the class."""
        found: Any = call_user_function(self.function, terms, **self.params)
        if not isinstance(found, Surrogate):
            found = Surrogate(found, terms.log_probs_T != terms.log_probs_T)
        expected = terms.log_probs_T.shape
        for part, column_T in found._asdict().items():
            if getattr(column_T, "shape", None) != expected:
                given = getattr(column_T, "shape", type(column_T).__name__)
                msg = f"loss.function = {self.function!r} returned {given} as {part}: it must return one number for each of the {expected[0]} tokens; do not sum or average, the denominator does"
                raise DataError(msg)
        if terms.log_probs_T.requires_grad and not getattr(
            found.numerator_T, "requires_grad", False
        ):
            msg = f"loss.function = {self.function!r} returned numbers without a gradient, so nothing would train; compute them from terms.log_probs_T or terms.ratio_T, with torch and without detach"
            raise DataError(msg)
        return found
