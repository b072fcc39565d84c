"""The last versions of a model's weights, in host memory, to score tokens of older versions."""

import torch
from torch import Tensor, nn

from zerogap.errors import ConfigError, UnknownWeightVersion, WeightSyncError
from zerogap.weights.copying import copy_weights, describe, named
from zerogap.weights.digest import NamedWeights, named_weights


class WeightHistory:
    """Copies of the parameters of at most ``capacity`` versions; the oldest makes room for the next.

    Owns the copies. A new version reuses the memory of the one that it evicts.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            msg = f"a weight history of {capacity} versions can hold nothing; use 1 or more (rollout.lag + 1)"
            raise ConfigError(msg)
        self.capacity = capacity
        self._copies: dict[int, dict[str, Tensor]] = {}

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that are held, oldest first."""
        return tuple(sorted(self._copies))

    def remember(self, version: int, model: nn.Module) -> None:
        """Copy a model's parameters as those of ``version``.

        Raises:
            WeightSyncError: the version is held with other values, is older than what is held, or the model is another one.
        """
        weights = named_weights(model)
        if version in self._copies:
            self._refuse_others(version, weights)
            return
        self._check(version, weights)
        copy = self._room(weights)
        copy_weights(weights.items(), copy)
        self._copies[version] = copy

    def restore(self, version: int, weights: NamedWeights) -> None:
        """Hold the tensors of a saved version; this history owns them from here on.

        Raises:
            WeightSyncError: the version is older than what is held, or of another model.
        """
        self._check(version, weights)
        if len(self._copies) == self.capacity:
            del self._copies[min(self._copies)]
        self._copies[version] = dict(weights)

    def weights(self, version: int) -> NamedWeights:
        """A version's tensors, to read only; valid until the version is evicted.

        Raises:
            UnknownWeightVersion: it is not held any more, or never was.
        """
        if version not in self._copies:
            held = ", ".join(map(str, self.versions)) or "none"
            msg = f"weights of version {version} are not in the history, which holds {held} (the last {self.capacity}); keep more versions, or leave out what needs this one"
            raise UnknownWeightVersion(msg)
        return self._copies[version]

    def load_into(self, version: int, model: nn.Module) -> None:
        """Fill a model's parameters with a version, in place.

        Raises:
            UnknownWeightVersion: as ``weights``; the model is unchanged.
            WeightSyncError: the model has other parameters.
        """
        copy_weights(self.weights(version).items(), named_weights(model))

    def _room(self, weights: NamedWeights) -> dict[str, Tensor]:
        if len(self._copies) == self.capacity:
            # Removed first: if the copy fails half way, nothing may stay under the old number.
            return self._copies.pop(min(self._copies))
        return {
            name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in weights.items()
        }

    def _check(self, version: int, weights: NamedWeights) -> None:
        if not self._copies:
            return
        newest = max(self._copies)
        if version < newest:
            msg = f"version {version} came after version {newest}: versions only grow, so one of the two numbers is wrong; remember each version when it is published"
            raise WeightSyncError(msg)
        given, held = (
            {(name, describe(tensor)) for name, tensor in tensors.items()}
            for tensors in (weights, self._copies[newest])
        )
        if wrong := {name for name, _ in given ^ held}:
            msg = f"version {version} is of another model than version {newest}: {named(wrong)} differ in name, shape or dtype; use a history for each model"
            raise WeightSyncError(msg)

    def _refuse_others(self, version: int, weights: NamedWeights) -> None:
        held = self._copies[version]
        wrong = held.keys() ^ weights.keys()
        common = held.keys() & weights.keys()
        wrong |= {n for n in common if not torch.equal(held[n], weights[n].cpu())}
        if wrong:
            msg = f"version {version} is remembered already, with other values of {named(wrong)}: a version's weights never change; give changed weights the next number"
            raise WeightSyncError(msg)
