"""The advantages that compare nothing: none, and the user's own."""

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from zerogap.algorithms.advantages.base import AdvantageConfig, AdvantageInputs, Advantages
from zerogap.algorithms.user_function import call_user_function
from zerogap.errors import DataError
from zerogap.section import TomlValue


class NoAdvantage(AdvantageConfig):
    """0 for every token: rewards are measured and train nothing. A teacher does."""

    kind: Literal["none"] = "none"
    """How."""
    uses_rewards: ClassVar[bool] = False

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        return Advantages(np.where(inputs.loss_mask_S, 0.0, np.nan))


class ImportedAdvantage(AdvantageConfig):
    """Your own function: ``function(inputs: AdvantageInputs, **params)`` returns [B], one number a sample, or [S], one a token.

    docs/algorithms.md has an example.
    """

    kind: Literal["import"] = "import"
    """How."""
    function: str = Field(pattern=r"^[\w.]+:\w+$")
    """``module:function``, importable from the working directory."""
    params: dict[str, TomlValue] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    def decide(self, inputs: AdvantageInputs) -> Advantages:
        """See the class."""
        returned: Any = call_user_function(self.function, inputs, **self.params)
        try:
            found = np.asarray(returned, np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            msg = f"advantage.function = {self.function!r} returned a {type(returned).__name__} that is no array of numbers ({error}); return a numpy array"
            raise DataError(msg) from error
        num_samples, num_tokens = len(inputs.rewards_B), len(inputs.sample_S)
        if found.shape == (num_samples,) and num_samples != num_tokens:
            found = inputs.spread(found)
        if found.shape != (num_tokens,):
            msg = f"advantage.function = {self.function!r} returned shape {list(found.shape)}: it must return one number for each of {num_samples} samples or {num_tokens} tokens"
            raise DataError(msg)
        return Advantages(np.where(inputs.loss_mask_S, found, np.nan))
