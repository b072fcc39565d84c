"""Publishes trained weights to an engine: complete and checked on both sides, or not at all.

A ``WeightSink`` is the engine: ours, or another one behind the same calls, in this process or elsewhere. Between ``begin``
and ``end`` it refuses to generate. ``end`` is called only after the digest of what it reads equals the digest of what was to
be served, so after any failure it refuses to generate until a publish succeeds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from zerogap.errors import WeightSyncError
from zerogap.weights.copying import named
from zerogap.weights.digest import Place, WeightDigest, digest_weights, places_of, unrounded
from zerogap.weights.sources import WeightSource
from zerogap.weights.versions import WeightVersions


class WeightSink(Protocol):
    """An engine that generates with the published weights."""

    def begin_weight_update(self) -> None:
        """Refuse to generate from here on; a second call begins again."""
        ...

    def write_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy every tensor in place, by the trainer's names."""
        ...

    def digest(self) -> WeightDigest:
        """The digest of what generation reads now, by the trainer's names and in its dtypes.

        Never of what was received: a sink with another layout (split projections, bf16) digests its own layout's values.
        """
        ...

    def places(self) -> Mapping[str, Place]:
        """The places of the tensors that generation reads unchanged, by the trainer's names.

        Without tensors of another process or another layout: their memory cannot be the trainer's.
        """
        ...

    def end_weight_update(self, version: int) -> None:
        """The weights are complete and checked: generate with them, under this version."""
        ...


@dataclass(frozen=True, kw_only=True)
class Published:
    """A publish that succeeded."""

    version_served: int
    """The version that tokens are marked with from here on: the trainer's minus the lag."""
    digest: WeightDigest
    """Of what the engine reads, which may be rounded; ``WeightVersions`` has the digest before rounding."""
    fingerprint: str
    """``WeightDigest.hex`` of the trainer's weights, as a checkpoint keeps it. An older served version has another one."""
    is_shared: bool
    """Engine and trainer read one storage: one digest covers both, and nothing was copied."""


class Publisher:
    """Serves a source's weights from a sink, and records what each version stands for."""

    def __init__(self, source: WeightSource, sink: WeightSink, versions: WeightVersions) -> None:
        self._source = source
        self._sink = sink
        self._versions = versions

    def publish(self, version: int) -> Published:
        """Serve what the source has for ``version``; the trainer's weights must not change meanwhile.

        Raises:
            WeightSyncError: the two sides differ (names the tensors), or one version has two sets of weights. After this and
                any other exception the sink refuses to generate until a publish succeeds.
        """
        self._sink.begin_weight_update()
        served = self._source.take(version)
        digest, is_shared = self._transfer(served)
        is_rounded = self._source.rounding is not unrounded
        origin = digest_weights(self._source.weights(served)) if is_rounded else digest
        trained = origin if served == version else digest_weights(self._source.trained())
        self._versions.record(served, origin.hex)
        self._sink.end_weight_update(served)
        return Published(
            version_served=served,
            digest=digest,
            fingerprint=trained.hex,
            is_shared=is_shared,
        )

    def _transfer(self, served: int) -> tuple[WeightDigest, bool]:
        """Copy unless the storage is shared. Returns the digest of what the sink reads, and whether it is shared."""
        weights, rounding = self._source.weights(served), self._source.rounding
        places = self._sink.places()
        self._source.check_sink(places)
        expected = digest_weights(weights, rounding=rounding)
        if places_of(weights) == places:
            return expected, True
        self._sink.write_weights((name, rounding(tensor)) for name, tensor in weights.items())
        found = self._sink.digest()
        if wrong := found.differences(expected):
            msg = f"after publishing version {served} the engine does not hold its weights: {len(wrong)} of {len(expected.tensors)} tensors differ ({named(wrong)}). It refuses to generate; publish again, and if they differ again, something else writes to the engine's weights or reads them by other names"
            raise WeightSyncError(msg)
        return found, False
