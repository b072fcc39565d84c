"""Forward passes over audited samples; none is made twice."""

from collections.abc import Sequence

import numpy as np

from zerogap.errors import WeightSyncError
from zerogap.ledger.scorer import Routes, Scorer
from zerogap.types import Sample


class Passes:
    """Cached scores of samples by version and routes; float64 columns [T]."""

    def __init__(self, samples: Sequence[Sample], scorer: Scorer) -> None:
        self._samples, self._scorer = samples, scorer
        self._found: dict[tuple[int, int, Routes], np.ndarray] = {}
        self._gone: set[int] = set()
        self.has_routes = any(sample.routes is not None for sample in samples)
        """Whether replayed and free routes can differ. If not, the scorer is asked for replayed ones only."""

    def prefetch_others(self, version: int) -> None:
        """Score what all other versions sampled, so that their weights are not needed later."""
        for other in (v for v in _versions(self._samples) if v != version):
            at = [i for i, sample in enumerate(self._samples) if other in sample.weight_version]
            for routes in ("replayed", "free"):
                self._columns(at, other, routes)

    def provide(self, version: int, columns: Sequence[np.ndarray]) -> None:
        """Store every sample's scores by one version, with free routes; known scores stay."""
        routes = self._routes("free")
        for i, column in enumerate(columns):
            self._found.setdefault((i, version, routes), column.astype(np.float64))

    def of_version(self, version: int, routes: Routes) -> list[np.ndarray]:
        """Scores of every sample by one version.

        Raises:
            WeightSyncError: the weights of that version are not available.
        """
        columns = self._columns(range(len(self._samples)), version, routes)
        return _held(columns, version)

    def alone(self, sample: Sample, version: int) -> np.ndarray:
        """Scores of one sample by itself with free routes, from a pass of its own: float64 [T].

        Raises:
            WeightSyncError: the weights of that version are not available.
        """
        scored = self._scorer.score([sample], version=version, routes=self._routes("free"))
        return _held(scored, version)[0].astype(np.float64)

    def by_own_version(self, routes: Routes) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Scores of every token by the version that sampled it, and bool [T]: where that version is available."""
        columns = [np.full(len(sample), np.nan) for sample in self._samples]
        is_held = [np.zeros(len(sample), bool) for sample in self._samples]
        for version in _versions(self._samples):
            drawn = [sample.weight_version == version for sample in self._samples]
            at = [i for i, here in enumerate(drawn) if here.any()]
            for i, column in zip(at, self._columns(at, version, routes) or (), strict=False):
                columns[i][drawn[i]] = column[drawn[i]]
                is_held[i] |= drawn[i]
        return columns, is_held

    def _columns(self, at: Sequence[int], version: int, routes: Routes) -> list[np.ndarray] | None:
        """Scores of the samples at these places; None if the version is gone."""
        routes = self._routes(routes)
        missing = [i for i in at if (i, version, routes) not in self._found]
        if version in self._gone:
            return None
        if missing:
            samples = [self._samples[i] for i in missing]
            scored = self._scorer.score(samples, version=version, routes=routes)
            if scored is None:
                # Not asked again: the answer must not change during an audit.
                self._gone.add(version)
                return None
            for i, column in zip(missing, scored, strict=True):
                self._found[i, version, routes] = column.astype(np.float64)
        return [self._found[i, version, routes] for i in at]

    def _routes(self, routes: Routes) -> Routes:
        return routes if self.has_routes else "replayed"


def _held(columns: list[np.ndarray] | None, version: int) -> list[np.ndarray]:
    if columns is None:
        msg = f"the scorer has no weights of version {version}, the version that trains now, so it cannot score its stages; give the ledger the version that the trainer holds"
        raise WeightSyncError(msg)
    return columns


def _versions(samples: Sequence[Sample]) -> list[int]:
    drawn = np.concatenate([sample.weight_version for sample in samples])
    return np.unique(drawn[drawn >= 0]).tolist()
