"""A run's checkpoints. After a kill at any moment, each checkpoint is complete or absent.

A checkpoint is a set of named parts. Each part has an owner that writes and reads its folder, so a buffer or a second
policy only adds a part. ``checkpoints/step_000123/`` holds one folder per part, and ``state.json`` with the step, the
parts with a digest of each file, and a digest of all this. It is written under a temporary name, flushed to disk, and renamed.
"""

import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from zerogap.errors import CheckpointError, ZerogapError
from zerogap.obs import building
from zerogap.run.digests import digest_of_json, digests_of_files
from zerogap.run_folder import CHECKPOINT_STATE, checkpoint_name, list_checkpoints
from zerogap.tensor_file import save_tensors
from zerogap.weights import (
    NamedWeights,
    WeightHistory,
    copy_weights,
    named_weights,
    trained_weights,
    weight_fingerprint,
)

_FORMAT = 5
_NUM_LISTED = 5
_WEIGHTS, _JSON = "model.safetensors", "state.json"
_ABOUT = "zerogap"
_DIGEST = "digest"


class CheckpointPart(Protocol):
    """One owner's share of a checkpoint."""

    @property
    def name(self) -> str:
        """Name of its folder; unique among the parts."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that the next step depends on into an empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Restore the state that ``save`` wrote.

        Raises:
            CheckpointError: another owner wrote the folder. Errors of reading files may be raised as they are.
        """
        ...


class HasState(Protocol):
    """An object with a state in JSON."""

    def state_dict(self) -> Mapping[str, Any]:
        """For a checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Restore a ``state_dict``."""
        ...


@dataclass(frozen=True)
class JsonPart:
    """A small state, as one JSON file."""

    name: str
    owner: HasState

    def save(self, folder: Path) -> None:
        """Write the file."""
        text = json.dumps(self.owner.state_dict(), indent=2) + "\n"
        (folder / _JSON).write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Read the file."""
        self.owner.load_state_dict(json.loads((folder / _JSON).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class WeightsPart:
    """The weights of a model that train, and the fingerprint of all its weights.

    Frozen weights are not saved: they come from the model's source.
    """

    model: nn.Module
    name: str = "weights"

    def save(self, folder: Path) -> None:
        """Write one file."""
        described = {
            "fingerprint": weight_fingerprint(self.model),
            "frozen": sorted(self._frozen()),
        }
        # Only one key: safetensors writes several in any order, and equal checkpoints must be equal files.
        metadata = {_ABOUT: json.dumps(described)}
        save_tensors(trained_weights(self.model), folder / _WEIGHTS, metadata=metadata)

    def load(self, folder: Path) -> None:
        """Load the file into the model, in place.

        Raises:
            CheckpointError: the file is of another model, froze other parameters, or was changed.
        """
        path = folder / _WEIGHTS
        with safe_open(path, framework="pt") as file:
            described = json.loads(file.metadata()[_ABOUT])
        weights = load_file(path)
        self._check(path, weights, frozen=set(described["frozen"]))
        copy_weights(weights.items(), trained_weights(self.model))
        found, saved = weight_fingerprint(self.model), described["fingerprint"]
        if found != saved:
            msg = f"{path} gives weights with fingerprint {found}, but {saved} was saved: the file was damaged, or the frozen weights are of another model; delete the checkpoint's folder to continue from the previous one"
            raise CheckpointError(msg)

    def _frozen(self) -> set[str]:
        return named_weights(self.model).keys() - trained_weights(self.model).keys()

    def _check(self, path: Path, weights: NamedWeights, *, frozen: set[str]) -> None:
        ours = named_weights(self.model)
        wrong = ours.keys() ^ (weights.keys() | frozen)
        wrong |= {n for n in ours.keys() & weights.keys() if ours[n].shape != weights[n].shape}
        if wrong:
            msg = f"{path} holds another model: {_listed(wrong)} differ in name or shape; use another run.dir"
            raise CheckpointError(msg)
        if (here := self._frozen()) != frozen:
            msg = f"{path} was saved with other frozen parameters: {_listed(here - frozen)} are frozen only now, {_listed(frozen - here)} only in the checkpoint; freeze the same ones, or use another run.dir"
            raise CheckpointError(msg)


@dataclass(frozen=True)
class OlderWeights:
    """Older versions of the weights that the engine needs after a resume; empty without a history."""

    history: WeightHistory | None
    version: int
    """The current version."""
    name: str = "older_weights"

    def save(self, folder: Path) -> None:
        """Write one file per version."""
        if self.history is None:
            return
        for older in self.history.versions:
            if older < self.version:
                save_tensors(self.history.weights(older), folder / f"{older:06d}.safetensors")

    def load(self, folder: Path) -> None:
        """Load the files into an empty history."""
        if self.history is None:
            return
        for path in sorted(folder.iterdir()):
            self.history.restore(int(path.stem), load_file(path))


def save_checkpoint(folder: Path, step: int, parts: Sequence[CheckpointPart], *, keep: int) -> Path:
    """Write ``folder/step_<step>`` and remove all but the ``keep`` newest; returns the new one.

    Args:
        folder: of all checkpoints.
        step: steps done.
        parts: all parts, in their state after that step.
        keep: how many checkpoints stay.

    Raises:
        OSError: a file cannot be written; nothing is left of the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_partial(folder)
    partial = folder / f".{checkpoint_name(step)}.partial"
    with building(partial):
        _write(partial, step, parts)
    final = folder / checkpoint_name(step)
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    _sync(folder)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def _write(folder: Path, step: int, parts: Sequence[CheckpointPart]) -> None:
    for part in parts:
        (folder / part.name).mkdir()
        part.save(folder / part.name)
    digests = {part.name: digests_of_files(folder / part.name) for part in parts}
    described = {"format": _FORMAT, "step": step, "parts": digests}
    text = json.dumps({**described, _DIGEST: digest_of_json(described)}, indent=2) + "\n"
    (folder / CHECKPOINT_STATE).write_text(text, encoding="utf-8")
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def load_checkpoint(path: Path, parts: Sequence[CheckpointPart]) -> int:
    """Load parts in this order; returns the step after which they were saved.

    Args:
        path: of one checkpoint.
        parts: the parts to load; the checkpoint may hold more.

    Raises:
        CheckpointError: a file is missing or damaged, or a part belongs to another owner.
    """
    try:
        described = _described(path)
        for part in parts:
            if part.name not in described["parts"]:
                msg = f"checkpoint {path} has no part {part.name!r} ({', '.join(described['parts'])}): another kind of run wrote it; use another run.dir"
                raise CheckpointError(msg)
            _check_digests(path / part.name, described["parts"][part.name])
            part.load(path / part.name)
    except ZerogapError:
        raise  # the owner's own error says more
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        msg = f"checkpoint {path} cannot be read ({error}); delete it to continue from the previous one"
        raise CheckpointError(msg) from error
    return int(described["step"])


def _described(path: Path) -> dict[str, Any]:
    """What state.json says, checked against its digest."""
    described = json.loads((path / CHECKPOINT_STATE).read_text(encoding="utf-8"))
    if described["format"] != _FORMAT:
        msg = f"checkpoint {path} does not have format {_FORMAT}: another version of zerogap wrote it; resume with that version"
        raise CheckpointError(msg)
    if described.pop(_DIGEST) != digest_of_json(described):
        raise CheckpointError(_was_changed(path / CHECKPOINT_STATE))
    return described


def _check_digests(folder: Path, saved: Mapping[str, str]) -> None:
    found = digests_of_files(folder)
    for name in sorted(found.keys() | saved.keys()):
        if found.get(name) != saved.get(name):
            raise CheckpointError(_was_changed(folder / name))


def _was_changed(path: Path) -> str:
    return f"{path} is not as it was saved: it was damaged, changed, added or removed; delete the checkpoint's folder to continue from the previous one, or restore it"


def _listed(names: Collection[str]) -> str:
    more = f" ({len(names)} in all)" if len(names) > _NUM_LISTED else ""
    return (", ".join(sorted(names)[:_NUM_LISTED]) or "none") + more


def _remove_partial(folder: Path) -> None:
    for path in folder.glob(".step_*.partial"):
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    """Wait until the file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
