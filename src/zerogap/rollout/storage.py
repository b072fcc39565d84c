"""Samples on disk, as a run writes them every few steps: exact, without pickle, and never half written.

``columns.safetensors`` holds each declared column of all samples end to end ([sum T, ...]), with ``format`` and
``offsets`` (sample b is ``[offsets[b], offsets[b + 1])``). An optional column is present if any sample has it;
``NAME.samples``, bool [B], then says which samples do. A column of lists is stored as ``NAME.values`` and
``NAME.offsets``. ``samples.jsonl`` has one line for each sample with its scalars, turns and texts.
``trainer.safetensors`` holds columns of the trainer, of the same length.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from zerogap.errors import DataError
from zerogap.obs import building
from zerogap.tensor_file import save_arrays
from zerogap.types import SAMPLE_COLUMNS, FinishReason, Outcome, Sample, Turn
from zerogap.types.columns import Column, Values

COLUMNS_FILE, SAMPLES_FILE, TRAINER_FILE = (
    "columns.safetensors",
    "samples.jsonl",
    "trainer.safetensors",
)

_FORMAT = 2
"""Changes with the layout; adding or removing a declared column does not change it."""
_SCALARS = ("group_id", "rollout_id", "temperature", "outcome_detail", "reward", "text")


def save_rollouts(
    folder: Path,
    samples: Sequence[Sample],
    *,
    notes: Mapping[str, Mapping[str, Any]] | None = None,
    trainer_columns: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the samples into a folder, replacing an old one.

    Args:
        folder: appears with all its files at once.
        samples: loading keeps their order.
        notes: for people, by group id (question, answer); JSON values, written with each sample of the group.
        trainer_columns: float columns [sum T] over the samples in order, such as ``old_log_probs``.
    """
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    with building(staging):
        save_arrays(_flat_columns(samples), staging / COLUMNS_FILE)
        with (staging / SAMPLES_FILE).open("w", encoding="utf-8") as lines:
            for sample in samples:
                line = _line(sample) | {"note": dict((notes or {}).get(sample.group_id, {}))}
                lines.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        if trainer_columns:
            columns = {name: np.ascontiguousarray(c) for name, c in trainer_columns.items()}
            save_arrays(columns, staging / TRAINER_FILE)
        _replace(staging, folder)


def load_rollouts(folder: Path) -> list[Sample]:
    """The samples that ``save_rollouts`` wrote, equal in every field and checked like new ones.

    Raises:
        DataError: the folder holds no rollouts, has another format, or its files contradict each other.
    """
    try:
        flat = load_file(folder / COLUMNS_FILE)
        lines = (folder / SAMPLES_FILE).read_text(encoding="utf-8").split("\n")[:-1]
        records = [json.loads(line) for line in lines]
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        msg = f"{folder} holds no readable rollouts ({error}); give a folder such as runs/NAME/rollouts/step_000123"
        raise DataError(msg) from error
    if (found := flat.get("format", np.ones(1)).tolist()) != [_FORMAT]:
        msg = f"{folder} holds rollouts of format {found[0]:g}, but this version of zerogap reads format {_FORMAT}; use the version that the run's environment.json names"
        raise DataError(msg)
    try:
        columns = _columns(flat)
        if len(records) != len(columns):
            msg = f"{folder}: {SAMPLES_FILE} has {len(records)} samples, but {COLUMNS_FILE} has {len(columns)}; the folder is damaged, remove it"
            raise DataError(msg)
        return [_sample(*parts) for parts in zip(columns, records, strict=True)]
    except (KeyError, TypeError) as error:
        msg = f"{folder}: a value is missing or has another type ({type(error).__name__}: {error}); the folder is damaged, remove it"
        raise DataError(msg) from error


def _flat_columns(samples: Sequence[Sample]) -> dict[str, np.ndarray]:
    flat = {"format": np.array([_FORMAT]), "offsets": _offsets([len(s) for s in samples])}
    for column in SAMPLE_COLUMNS:
        values = [getattr(sample, column.name) for sample in samples]
        held = [one for one in values if one is not None]
        if column.is_optional and not held:
            continue
        if column.is_optional:
            flat[f"{column.name}.samples"] = np.array([one is not None for one in values])
        flat |= column.to_arrays(column.joined(held))
    return flat


def _columns(flat: Mapping[str, np.ndarray]) -> list[dict[str, Values]]:
    """The columns of each sample, by name."""
    lengths = np.diff(flat["offsets"])
    samples: list[dict[str, Values]] = [{} for _ in lengths]
    for column in SAMPLE_COLUMNS:
        for place, values in _rows(column, flat, lengths):
            samples[place][column.name] = values
    return samples


def _rows(
    column: Column, flat: Mapping[str, np.ndarray], lengths: np.ndarray
) -> Iterator[tuple[int, Values]]:
    """The place of each sample that has the column, with its rows."""
    names_samples = f"{column.name}.samples"
    if column.is_optional and names_samples not in flat:
        return
    places = np.flatnonzero(flat[names_samples]) if column.is_optional else np.arange(len(lengths))
    offsets, values = _offsets(lengths[places]), column.declared(column.from_arrays(flat))
    if len(values) != offsets[-1]:
        msg = f"{column.name} has {len(values)} rows for {offsets[-1]} tokens; {COLUMNS_FILE} is damaged, remove its folder"
        raise DataError(msg)
    for place, start, end in zip(places, offsets[:-1], offsets[1:], strict=True):
        yield int(place), values[start:end]


def _offsets(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _line(sample: Sample) -> dict[str, Any]:
    hinted = sample.teacher_prompt_ids
    return {name: getattr(sample, name) for name in _SCALARS} | {
        **({} if hinted is None else {"teacher_prompt_ids": list(hinted)}),
        "outcome": str(sample.outcome),
        "reward_parts": dict(sample.reward_parts),
        "turns": [asdict(turn) for turn in sample.turns],
    }


def _sample(columns: Mapping[str, Values], record: Mapping[str, Any]) -> Sample:
    fields: dict[str, Any] = {name: record[name] for name in _SCALARS} | dict(columns)
    hinted = record.get("teacher_prompt_ids")
    return Sample(
        **fields,
        teacher_prompt_ids=None if hinted is None else tuple(hinted),
        turns=tuple(
            Turn(**turn | {"finish_reason": FinishReason(**turn["finish_reason"])})
            for turn in record["turns"]
        ),
        outcome=Outcome(record["outcome"]),
        reward_parts=record["reward_parts"],
    )


def _replace(staging: Path, folder: Path) -> None:
    """Rename in two steps, since no folder can replace one with files; between the two there is no folder."""
    old = folder.with_name(f"{staging.name}.old")
    if folder.exists():
        folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
