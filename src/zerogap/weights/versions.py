"""Which weights each version number stands for: a token is accepted only if its version's digest is known."""

from collections.abc import Iterable, Mapping

import numpy as np

from zerogap.errors import UnknownWeightVersion, WeightSyncError
from zerogap.types import Sample

_NUM_LISTED = 8


class WeightVersions:
    """Digest by version, for the whole run; saved with its checkpoints.

    A number never stands for two different sets of weights, across resumes too. The digest is of the trainer's weights: an
    engine of another precision samples with the same version, rounded.
    """

    def __init__(self) -> None:
        self._digests: dict[int, str] = {}

    def __contains__(self, version: int) -> bool:
        return version in self._digests

    def record(self, version: int, digest: str) -> None:
        """Record a version that the engine serves, and its weights' digest before rounding.

        Raises:
            WeightSyncError: the version stands for other weights already.
        """
        if version < 0:
            msg = f"weight version {version} is negative, which marks tokens that were not sampled; use 0 or more"
            raise WeightSyncError(msg)
        known = self._digests.setdefault(version, digest)
        if known != digest:
            msg = f"weight version {version} was published with digest {known} and now has {digest}: its tokens could be of either; publish changed weights under the next number, or resume from the checkpoint that belongs to this run"
            raise WeightSyncError(msg)

    def digest_of(self, version: int) -> str:
        """What the version stands for.

        Raises:
            UnknownWeightVersion: it was never published.
        """
        if version not in self._digests:
            raise UnknownWeightVersion(self._unknown(f"version {version}"))
        return self._digests[version]

    def admit(self, samples: Iterable[Sample]) -> None:
        """Refuse samples with a token of an unknown version. Tokens that were not sampled have no version.

        Raises:
            UnknownWeightVersion: names the first such rollout.
        """
        for sample in samples:
            versions = np.unique(sample.weight_version[sample.weight_version >= 0]).tolist()
            strangers = [version for version in versions if version not in self]
            if strangers:
                at = int(np.flatnonzero(sample.weight_version == strangers[0])[0])
                what = f"rollout {sample.rollout_id}: the token at position {at} was sampled by version {strangers[0]}"
                raise UnknownWeightVersion(self._unknown(what))

    def state_dict(self) -> dict[str, str]:
        """For a checkpoint, as JSON: digests by version as text."""
        return {str(version): digest for version, digest in sorted(self._digests.items())}

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Replace the known digests with a saved run's."""
        self._digests = {int(version): digest for version, digest in state.items()}

    def _unknown(self, what: str) -> str:
        known = sorted(self._digests)
        listed = ", ".join(map(str, known[-_NUM_LISTED:])) or "none"
        some = f"the last of {len(known)}: " if len(known) > _NUM_LISTED else ""
        return f"{what}, whose weights have no known digest (known versions: {some}{listed}), so the policy behind it is unknown; publish weights before generating with them, and train only on rollouts of this run"
