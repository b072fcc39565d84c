"""The order of training prompts: a pure function of the seed, so that a resumed run sees the same ones."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from zerogap.data.items import PromptItem
from zerogap.errors import CheckpointError, DataError


class PromptStream:
    """Prompts without end: epoch after epoch, each in a new order fixed by (seed, epoch).

    Owns one number, the position. ``at`` gives any stretch of the stream and changes nothing;
    ``take`` gives the next one and moves on. A stretch may cross from one epoch into the next.
    """

    def __init__(self, items: Sequence[PromptItem], *, seed: int, shuffle: bool = True) -> None:
        if not len(items):
            msg = (
                "there are no training prompts; check data.path, or data.size for generated prompts"
            )
            raise DataError(msg)
        self._items = items
        self._seed = seed
        self._shuffle = shuffle
        self._position = 0
        self._order = lru_cache(maxsize=2)(self._epoch_order)

    @property
    def position(self) -> int:
        """Prompts taken so far."""
        return self._position

    @property
    def epoch(self) -> float:
        """Passes over the data so far."""
        return self._position / len(self._items)

    def at(self, position: int, count: int) -> list[PromptItem]:
        """Prompts ``[position, position + count)`` of the stream."""
        places = (divmod(p, len(self._items)) for p in range(position, position + count))
        return [self._items[int(self._order(epoch)[place])] for epoch, place in places]

    def take(self, count: int) -> list[PromptItem]:
        """The next ``count`` prompts."""
        batch = self.at(self._position, count)
        self._position += count
        return batch

    def state_dict(self) -> dict[str, int | bool]:
        """All that a resumed run needs; plain numbers."""
        return {"position": self._position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Go on where the state was taken.

        Raises:
            CheckpointError: the state is of other data or another seed.
        """
        for name, here in self._identity().items():
            if state[name] != here:
                msg = f"the checkpoint's prompt stream has {name} = {state[name]} and this run has {here}; resume with the data and run.seed that the run began with, or start a new run"
                raise CheckpointError(msg)
        self._position = int(state["position"])

    def _identity(self) -> dict[str, int | bool]:
        return {"num_items": len(self._items), "seed": self._seed, "shuffle": self._shuffle}

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if not self._shuffle:
            return np.arange(len(self._items))
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._items))
