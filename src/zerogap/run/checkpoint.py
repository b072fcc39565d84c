"""A run's checkpoints: complete or absent, whatever is killed and when.

``checkpoints/step_000123/`` holds ``model.safetensors`` (weights by our names), ``trainer.safetensors``
(optimizer, schedule, random state) and ``state.json`` (step, weight version, place in the data). A run that samples with
older weights also keeps those, as ``weights_000121.safetensors`` by version. It is written beside its place, made
durable, and renamed.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from zerogap.errors import CheckpointError
from zerogap.models import CausalLM
from zerogap.run_folder import CHECKPOINT_STATE, list_checkpoints
from zerogap.weights import NamedWeights, WeightHistory, named_weights, weight_fingerprint

_FORMAT = 3
_MODEL, _TRAINER = "model.safetensors", "trainer.safetensors"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run stands after a step, besides weights and optimizer."""

    step: int
    """Steps done."""
    weight_version: int
    fingerprint: str
    """Of the weights; compared after loading."""
    prompts: Mapping[str, Any]
    """Place in the training data."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """``WeightVersions.state_dict``: what each version stands for that tokens may carry."""
    oversight: Mapping[str, Any] = field(default_factory=dict)
    """Of watch and budget."""
    adaptations: Mapping[str, Any] = field(default_factory=dict)
    """What remedies have changed."""


def save_checkpoint(
    folder: Path,
    model: CausalLM,
    trainer_state: Mapping[str, torch.Tensor],
    state: RunState,
    *,
    keep: int,
    history: WeightHistory | None = None,
) -> Path:
    """Write ``folder/step_<step>`` and remove all but the ``keep`` newest; returns the new one.

    Args:
        folder: of all checkpoints.
        model: its weights are those of ``state.weight_version``.
        trainer_state: ``Trainer.state_dict``.
        state: where the run stands.
        keep: how many checkpoints stay.
        history: its versions before this one are kept too; they will be served after a resume.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _remove_partial(folder)
    building = folder / f".step_{state.step:06d}.partial"
    building.mkdir()
    save_file(named_weights(model), building / _MODEL)
    save_file({name: t.contiguous() for name, t in trainer_state.items()}, building / _TRAINER)
    if history is not None:
        _save_older(history, state.weight_version, building)
    described = {"format": _FORMAT, **state.__dict__}
    (building / CHECKPOINT_STATE).write_text(
        json.dumps(described, indent=2) + "\n", encoding="utf-8"
    )
    for path in (*building.iterdir(), building):
        _sync(path)
    final = folder / f"step_{state.step:06d}"
    if final.exists():
        shutil.rmtree(final)
    building.rename(final)
    _sync(folder)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def load_checkpoint(
    path: Path, model: CausalLM, history: WeightHistory | None = None
) -> tuple[dict[str, torch.Tensor], RunState]:
    """Fill ``model`` with the checkpoint's weights; returns (trainer state, run state).

    Args:
        path: of one checkpoint.
        model: the policy's.
        history: empty; remembers the older versions that were kept.

    Raises:
        CheckpointError: a file is missing, belongs to another model, or was changed since.
    """
    try:
        described = json.loads((path / CHECKPOINT_STATE).read_text(encoding="utf-8"))
        weights, trainer_state = load_file(path / _MODEL), load_file(path / _TRAINER)
    except (OSError, ValueError, SafetensorError) as error:
        msg = f"checkpoint {path} cannot be read ({error}); delete it to go on from the one before"
        raise CheckpointError(msg) from error
    if described.pop("format", None) != _FORMAT:
        msg = f"checkpoint {path} is not of format {_FORMAT}: another version of zerogap wrote it; resume with that one"
        raise CheckpointError(msg)
    state = RunState(**described)
    if history is not None:
        for version, older in _older_weights(path):
            _fill(model, older, path)
            history.remember(version, model)
    _fill(model, weights, path)
    if (found := weight_fingerprint(model)) != state.fingerprint:
        msg = f"checkpoint {path} holds weights with fingerprint {found}, and {state.fingerprint} were saved: the file was damaged; delete the folder to go on from the one before"
        raise CheckpointError(msg)
    return trainer_state, state


def _save_older(history: WeightHistory, version: int, folder: Path) -> None:
    for older in history.versions:
        if older < version:
            save_file(dict(history.weights(older)), folder / f"weights_{older:06d}.safetensors")


def _older_weights(path: Path) -> Iterator[tuple[int, NamedWeights]]:
    """(version, tensors), oldest first."""
    for file in sorted(path.glob("weights_*.safetensors")):
        try:
            yield int(file.stem.removeprefix("weights_")), load_file(file)
        except (OSError, ValueError, SafetensorError) as error:
            msg = f"{file} cannot be read ({error}); delete the checkpoint's folder to go on from the one before"
            raise CheckpointError(msg) from error


def _fill(model: CausalLM, weights: Mapping[str, torch.Tensor], path: Path) -> None:
    parameters = dict(model.named_parameters())
    wrong = sorted(
        name
        for name in parameters.keys() | weights.keys()
        if name not in weights
        or name not in parameters
        or weights[name].shape != parameters[name].shape
    )
    if wrong:
        msg = f"checkpoint {path} is of another model: {wrong[:5]} ({len(wrong)} tensors) differ in name or shape; use another run.dir"
        raise CheckpointError(msg)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


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
