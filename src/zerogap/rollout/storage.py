"""Samples on disk, as a run writes them every few steps. Exact, without pickle, complete or absent.

``columns.safetensors`` holds each column of all samples end to end ([sum T]), with ``offsets`` (sample b
is ``[offsets[b], offsets[b + 1])``) and the turns in the same manner. ``samples.jsonl`` has one line a
sample with its scalars and texts. ``trainer.safetensors`` holds columns that the trainer adds, of the
same length.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from zerogap.errors import DataError
from zerogap.types import SAMPLE_COLUMNS, FinishReason, Outcome, Sample

COLUMNS_FILE, SAMPLES_FILE, TRAINER_FILE = (
    "columns.safetensors",
    "samples.jsonl",
    "trainer.safetensors",
)

_SCALARS = ("group_id", "rollout_id", "temperature", "outcome_detail", "reward", "seed", "text")


def save_rollouts(
    folder: Path,
    samples: Sequence[Sample],
    *,
    notes: Mapping[str, Mapping[str, Any]] | None = None,
    trainer_columns: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write the samples as the folder, replacing one that is there.

    Args:
        folder: appears with all its files at once.
        samples: in the order in which they will be loaded.
        notes: for people, by group id (question, answer); JSON values, written beside each sample of the group.
        trainer_columns: float columns [sum T] over the samples in order, such as ``old_log_probs``.
    """
    staging = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    save_file(_flat_columns(samples), staging / COLUMNS_FILE)
    with (staging / SAMPLES_FILE).open("w", encoding="utf-8") as lines:
        for sample in samples:
            line = _line(sample) | {"note": dict((notes or {}).get(sample.group_id, {}))}
            lines.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    if trainer_columns:
        columns = {name: np.ascontiguousarray(column) for name, column in trainer_columns.items()}
        save_file(columns, staging / TRAINER_FILE)
    _replace(staging, folder)


def load_rollouts(folder: Path) -> list[Sample]:
    """The samples that ``save_rollouts`` wrote, equal in every field; checked like new ones.

    Raises:
        DataError: the folder is no such folder, or its files contradict each other.
    """
    try:
        flat = load_file(folder / COLUMNS_FILE)
        lines = (folder / SAMPLES_FILE).read_text(encoding="utf-8").split("\n")[:-1]
        records = [json.loads(line) for line in lines]
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        msg = f"{folder} holds no readable rollouts ({error}); give a folder such as runs/NAME/rollouts/step_000123"
        raise DataError(msg) from error
    if len(records) != len(flat["offsets"]) - 1:
        msg = f"{folder}: {SAMPLES_FILE} has {len(records)} samples and {COLUMNS_FILE} has {len(flat['offsets']) - 1}; the folder is damaged, remove it"
        raise DataError(msg)
    return [_sample(flat, record, place) for place, record in enumerate(records)]


def _flat_columns(samples: Sequence[Sample]) -> dict[str, np.ndarray]:
    flat = {
        name: np.concatenate([np.empty(0, dtype), *(getattr(s, name) for s in samples)])
        for name, dtype in SAMPLE_COLUMNS.items()
    }
    turns = [turn for s in samples for turn in s.turns]
    return flat | {
        "offsets": _offsets([len(s) for s in samples]),
        "turns": np.array(turns, np.int64).reshape(len(turns), 2),
        "turn_offsets": _offsets([len(s.turns) for s in samples]),
    }


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _line(sample: Sample) -> dict[str, Any]:
    finish = sample.finish_reason
    return {name: getattr(sample, name) for name in _SCALARS} | {
        "outcome": str(sample.outcome),
        "reward_parts": dict(sample.reward_parts),
        "finish_reason": {
            "kind": finish.kind,
            "matched": finish.matched,
            "message": finish.message,
        },
    }


def _sample(flat: Mapping[str, np.ndarray], record: Mapping[str, Any], place: int) -> Sample:
    start, end = flat["offsets"][place : place + 2]
    first, last = flat["turn_offsets"][place : place + 2]
    fields: dict[str, Any] = {name: flat[name][start:end] for name in SAMPLE_COLUMNS}
    fields |= {name: record[name] for name in _SCALARS}
    return Sample(
        **fields,
        turns=tuple((int(a), int(b)) for a, b in flat["turns"][first:last]),
        outcome=Outcome(record["outcome"]),
        reward_parts=record["reward_parts"],
        finish_reason=FinishReason(**record["finish_reason"]),
    )


def _replace(staging: Path, folder: Path) -> None:
    """A folder cannot be renamed onto one with files: between the two renames there is none."""
    old = folder.with_name(f"{staging.name}.old")
    if folder.exists():
        folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
