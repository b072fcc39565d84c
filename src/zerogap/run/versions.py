"""``versions.jsonl``: which weights each version of a run was, one line a publish.

A checkpoint keeps the fingerprint of the weights it holds; this file keeps those of all others, so that weights which
are computed again from recorded rollouts can be proven to be the ones that sampled them.
"""

from pathlib import Path

from zerogap.errors import CheckpointError
from zerogap.obs import JsonlFile, read_jsonl


class VersionLog:
    """The open file of a running run; its only writer."""

    def __init__(self, path: Path, *, resumed_step: int = -1) -> None:
        """Open for appending; lines of steps after ``resumed_step`` go, as those steps will be done again."""
        self._file = JsonlFile(path, keep_until_step=resumed_step)

    def record(self, *, step: int, weight_version: int, fingerprint: str) -> None:
        """The weights that ``step`` published; step 0: those the run starts from."""
        line = {"step": step, "weight_version": weight_version, "fingerprint": fingerprint}
        self._file.write(line)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()


def read_versions(path: Path) -> dict[int, str]:
    """Weight version -> fingerprint; {} if the run kept none.

    Raises:
        CheckpointError: the file is damaged, or one version has two fingerprints.
    """
    versions: dict[int, str] = {}
    for line in read_jsonl(path) if path.exists() else ():
        version, fingerprint = int(line["weight_version"]), str(line["fingerprint"])
        if versions.setdefault(version, fingerprint) != fingerprint:
            msg = f"{path}: version {version} has the fingerprints {versions[version]} and {fingerprint}, and a version is one set of weights: another run wrote into this folder; use another run.dir for one of them"
            raise CheckpointError(msg)
    return versions
