"""The order of training prompts: a pure function of the seed, so a resumed run gets the same prompts."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from zerogap.data.items import PromptItem
from zerogap.errors import CheckpointError, DataError


class PromptStream:
    """An endless stream of prompts: epoch after epoch, each in an order fixed by (seed, epoch).

    Its only state is the position. ``at`` reads any range of the stream; ``take`` reads the next range and moves the
    position. A range may cross the end of an epoch.
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

    def at(self, position: int, count: int) -> list[PromptItem]:
        """Prompts ``[position, position + count)`` of the stream."""
        places = (divmod(p, len(self._items)) for p in range(position, position + count))
        return [self._items[int(self._order(epoch)[place])] for epoch, place in places]

    def take(self, count: int) -> list[PromptItem]:
        """The next ``count`` prompts; moves the position."""
        batch = self.at(self._position, count)
        self._position += count
        return batch

    def state_dict(self) -> dict[str, int | bool]:
        """The state for a checkpoint; plain numbers."""
        return {"position": self._position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int | bool]) -> None:
        """Continue from a ``state_dict``.

        Raises:
            CheckpointError: the state belongs to other data or another seed.
        """
        for name, here in self._identity().items():
            if state[name] != here:
                msg = f"the checkpoint's prompt stream has {name} = {state[name]}, but this run has {here}; resume with the original data and run.seed, or start a new run"
                raise CheckpointError(msg)
        self._position = int(state["position"])

    def _identity(self) -> dict[str, int | bool]:
        return {"num_items": len(self._items), "seed": self._seed, "shuffle": self._shuffle}

    def _epoch_order(self, epoch: int) -> np.ndarray:
        if not self._shuffle:
            return np.arange(len(self._items))
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._items))
