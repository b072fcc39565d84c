"""Penalties, biases and bans of one sequence, as a short list of (id, scale, add).

The cost of a step grows with the completion (and the prompt, for a repetition penalty), never with the vocabulary.
A sequence without any edits has no ``LogitEdits``.
"""

from collections.abc import Collection

import numpy as np

from zerogap.types import SamplingParams

_COUNT, _BIAS, _IS_SEEN, _IS_STOP = range(4)
_INITIAL_CAPACITY = 16


class LogitEdits:
    """Counts drawn ids, and gives the edits for the next draw."""

    def __init__(
        self, params: SamplingParams, prompt_ids: np.ndarray, stop_ids: Collection[int]
    ) -> None:
        self._params = params
        self._num_output = 0
        self._column_of: dict[int, int] = {}
        self._values = np.zeros((4, _INITIAL_CAPACITY), np.float32)
        """Per id: times drawn; bias; 1 if drawn or in the prompt; 1 if it ends the completion."""
        for token, bias in params.logit_bias.items():
            self._set(_BIAS, token, bias)
        if params.min_new_tokens:
            for token in stop_ids:
                self._set(_IS_STOP, token, 1)
        if params.repetition_penalty != 1:
            for token in np.unique(prompt_ids).tolist():
                self._set(_IS_SEEN, token, 1)

    @property
    def num_ids(self) -> int:
        """Number of ids that ``entries`` lists."""
        return len(self._column_of)

    def observe(self, token: int) -> None:
        """A token was drawn."""
        self._num_output += 1
        params = self._params
        if params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1:
            at = self._find(token)
            self._values[_COUNT, at] += 1
            self._values[_IS_SEEN, at] = 1

    def entries(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edits of the next draw: ids int32 [E], each once; scale float32 [E]; add float32 [E], -inf bans."""
        params, size = self._params, self.num_ids
        count, bias, is_seen, is_stop = self._values[:, :size]
        add = bias - np.float32(params.frequency_penalty) * count
        add -= np.float32(params.presence_penalty) * (count > 0)
        if self._num_output < params.min_new_tokens:
            add[is_stop > 0] = -np.inf
        scale = np.where(is_seen > 0, np.float32(params.repetition_penalty), np.float32(1))
        return np.fromiter(self._column_of, np.int32, size), scale, add

    def _set(self, row: int, token: int, value: float) -> None:
        # Before the assignment: ``_find`` may replace ``_values`` by a larger array.
        at = self._find(token)
        self._values[row, at] = value

    def _find(self, token: int) -> int:
        at = self._column_of.setdefault(token, len(self._column_of))
        if at == self._values.shape[1]:
            self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
        return at
