"""Reads the newest rollouts in a run's folder, and chooses which to show."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from zerogap.errors import ZerogapError
from zerogap.rollout.storage import SAMPLES_FILE, TRAINER_FILE, load_rollouts
from zerogap.run_folder import step_of
from zerogap.types import Sample

TRAINER_COLUMN = "old_log_probs"
NUM_RANKED = 5
"""How many of the best, of the worst and of the failed rollouts to show."""


@dataclass(frozen=True, eq=False)
class KeptRollout:
    """A sample with the trainer's log-probs."""

    step: int
    sample: Sample
    old_log_probs: np.ndarray
    """float32 [T], the trainer's at the start of the step; NaN at tokens that did not train or were not stored."""
    note: Mapping[str, Any]
    """Notes on the prompt for people, such as its reference answer."""

    @property
    def gap(self) -> np.ndarray:
        """float64 [T]: |trainer's - engine's log-prob|; NaN if one is missing; 0 only if equal to the bit."""
        ours, theirs = self.old_log_probs.astype(np.float64), self.sample.rollout_log_probs
        return np.abs(ours - theirs)


@dataclass(frozen=True)
class RankedRollouts:
    """Best, worst and failed rollouts, without overlap; only rollouts with a reward are ranked."""

    best: list[KeptRollout]
    worst: list[KeptRollout]
    """Lowest reward first."""
    failed: list[KeptRollout]
    """Newest step first."""
    num_scored: int
    """Number of ranked rollouts."""
    steps: list[int]
    """Steps of the rollouts."""


def read_newest(folder: Path, notes: list[str]) -> list[KeptRollout]:
    """Rollouts of the newest stored step, and of earlier ones until there are enough to rank.

    Args:
        folder: the run's ``rollouts``; may be absent.
        notes: gets a sentence for each unreadable step; a kill may leave one.
    """
    kept: list[KeptRollout] = []
    for step_folder in sorted(folder.glob("step_*"), reverse=True):
        try:
            kept += _read_step(step_folder, notes)
        except (ZerogapError, SafetensorError, OSError, ValueError, KeyError) as error:
            notes.append(f"rollouts/{step_folder.name} is left out: it cannot be read ({error}).")
        if sum(rollout.sample.reward is not None for rollout in kept) >= 2 * NUM_RANKED:
            break
    return kept


def rank(rollouts: Sequence[KeptRollout]) -> RankedRollouts:
    """The best and the worst by reward; among equal rewards, each group comes once before any comes twice."""
    scored = [rollout for rollout in rollouts if rollout.sample.reward is not None]
    best = _spread(scored, sign=-1)[: min(NUM_RANKED, math.ceil(len(scored) / 2))]
    others = [rollout for rollout in scored if not any(rollout is one for one in best)]
    failed = [rollout for rollout in rollouts if not rollout.sample.outcome.is_valid]
    steps = sorted({rollout.step for rollout in rollouts})
    worst = _spread(others, sign=1)[:NUM_RANKED]
    return RankedRollouts(best, worst, failed[:NUM_RANKED], len(scored), steps)


def _spread(scored: Sequence[KeptRollout], *, sign: int) -> list[KeptRollout]:
    seen: dict[tuple[float, int, str], int] = {}
    keys = []
    for place, rollout in enumerate(scored):
        reward = sign * (rollout.sample.reward or 0.0)
        same = (reward, rollout.step, rollout.sample.group_id)
        seen[same] = seen.get(same, 0) + 1
        keys.append((reward, seen[same], place))
    return [scored[place] for _, _, place in sorted(keys)]


def _read_step(folder: Path, notes: list[str]) -> list[KeptRollout]:
    samples = load_rollouts(folder)
    columns = _trainer_columns(folder, samples, notes)
    rollouts = zip(samples, columns, _prompt_notes(folder), strict=True)
    return [KeptRollout(step_of(folder), *rollout) for rollout in rollouts]


def _trainer_columns(folder: Path, samples: Sequence[Sample], notes: list[str]) -> list[np.ndarray]:
    ends = np.cumsum([0, *(len(sample) for sample in samples)])
    path = folder / TRAINER_FILE
    if path.exists():
        flat = load_file(path)[TRAINER_COLUMN]
    else:
        notes.append(f"rollouts/{folder.name} has no {TRAINER_FILE}: its tokens show no gap.")
        flat = np.full(ends[-1], np.nan, np.float32)
    if flat.shape != (ends[-1],):
        msg = f"{TRAINER_FILE} has log-probs of shape {flat.shape} for {ends[-1]} tokens"
        raise ValueError(msg)
    return [flat[start:end] for start, end in itertools.pairwise(ends)]


def _prompt_notes(folder: Path) -> list[Mapping[str, Any]]:
    lines = (folder / SAMPLES_FILE).read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line).get("note", {}) for line in lines]
