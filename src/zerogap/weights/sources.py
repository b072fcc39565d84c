"""The trainer's side of publishing: which weights are served when a version is published."""

from collections.abc import Mapping
from typing import Protocol

from torch import nn

from zerogap.errors import ConfigError, WeightSyncError
from zerogap.weights.copying import named
from zerogap.weights.digest import (
    NamedWeights,
    Place,
    Rounding,
    named_weights,
    places_of,
    unrounded,
)
from zerogap.weights.history import WeightHistory


class WeightSource(Protocol):
    """The trainer's weights, and which version of them the engine gets."""

    @property
    def rounding(self) -> Rounding:
        """From the trainer's values to the served ones."""
        ...

    def trained(self) -> NamedWeights:
        """The trainer's own tensors as they are now."""
        ...

    def take(self, version: int) -> int:
        """The trainer's weights are now those of ``version``. Returns the version to serve: this or an older one."""
        ...

    def weights(self, served: int) -> NamedWeights:
        """A version's weights before ``rounding``; the version that ``take`` returned last is always there."""
        ...

    def check_sink(self, places: Mapping[str, Place]) -> None:
        """Refuse a sink whose storage (``WeightSink.places``) contradicts how this source publishes.

        Raises:
            WeightSyncError: shared where it must be a copy, or the other way round.
        """
        ...


class SharedWeights:
    """The engine reads the trainer's own storage: nothing is copied, and only the newest version exists."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.rounding: Rounding = unrounded

    def trained(self) -> NamedWeights:
        """The model's parameters."""
        return named_weights(self._model)

    def take(self, version: int) -> int:
        """The version itself."""
        return version

    def weights(self, served: int) -> NamedWeights:
        """The trainer's tensors."""
        return self.trained()

    def check_sink(self, places: Mapping[str, Place]) -> None:
        """Refuse a sink that reads other storage."""
        ours = places_of(self.trained())
        wrong = [n for n in ours.keys() | places.keys() if ours.get(n) != places.get(n)]
        if wrong:
            msg = f"weights are published as shared, but {named(wrong)} of the engine are not the trainer's storage and would never change; build the engine on the trainer's model, or publish with CopiedWeights"
            raise WeightSyncError(msg)


class CopiedWeights:
    """The engine has its own weights: ``lag`` versions older than the trainer's, rounded to the engine's precision."""

    def __init__(
        self,
        model: nn.Module,
        history: WeightHistory | None = None,
        *,
        lag: int = 0,
        rounding: Rounding = unrounded,
    ) -> None:
        """Publish from a model, or from what a history remembers of it.

        Args:
            model: the trainer's; never written.
            history: gets every version that is published; needed for a lag.
            lag: how many versions the served weights are older; version 0 is served until there is such a version.
            rounding: to the engine's precision, such as bf16 values in fp32 tensors.
        """
        held = 0 if history is None else history.capacity
        if lag < 0 or (lag and held <= lag):
            msg = f"lag = {lag} with a history of {held} versions: a lag is 0 or more, and serving weights that are {lag} versions old needs the last {lag + 1}; use WeightHistory({max(lag, 0) + 1})"
            raise ConfigError(msg)
        self._model = model
        self._history = history
        self._lag = lag
        self.rounding = rounding

    def trained(self) -> NamedWeights:
        """The model's parameters."""
        return named_weights(self._model)

    def take(self, version: int) -> int:
        """Remember the version; returns the one ``lag`` before it, or 0.

        Raises:
            WeightSyncError: the version is remembered already with other values.
        """
        if self._history is not None:
            self._history.remember(version, self._model)
        return max(0, version - self._lag)

    def weights(self, served: int) -> NamedWeights:
        """A version's weights: the history's, or without one the model's.

        Raises:
            UnknownWeightVersion: the run was resumed without its older versions.
        """
        if self._history is not None:
            return self._history.weights(served)
        return self.trained()

    def check_sink(self, places: Mapping[str, Place]) -> None:
        """Refuse a sink that reads the trainer's storage, which copying would overwrite."""
        ours = {(place.device, place.address) for place in places_of(self.trained()).values()}
        shared = [name for name, p in places.items() if (p.device, p.address) in ours]
        if shared:
            msg = f"weights are published as copies, but {named(shared)} of the engine are the trainer's own storage, which would be overwritten; build the engine on a model of its own, or publish with SharedWeights"
            raise WeightSyncError(msg)
