"""Promise 8: model folder, engine memory and recipe survive a round trip unchanged."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zerogap.certify.finding import Finding
from zerogap.certify.rows import Reported, differences
from zerogap.config import RunConfig
from zerogap.config.load import config_from_toml, config_to_toml
from zerogap.data import TOKENIZER_FILES, Tokenizer
from zerogap.engine import Engine
from zerogap.types import GenerateRequest, Sample

_PROBE_TEXTS = (
    "",
    " ",
    "What is 6 times 7?",
    "  two  spaces\n\n\ttab",
    "naïve café, 北京, 🙂",
    "x = {'a': [1, 2.5]}  # comment",
)

Scores = Sequence[np.ndarray]

FOREIGN_LIMIT = 1e-3
"""Largest allowed difference from transformers, nats per token, both in fp32, where only the order of addition differs
(3e-5 for 135 M parameters)."""


@dataclass(frozen=True, kw_only=True)
class ModelFolder:
    """How to export the model, load it and score samples with it."""

    tokenizer: Tokenizer
    tokenizer_folder: Path | None
    """Folder with the tokenizer's original files; None if there is none."""
    samples: Sequence[Sample]
    """Samples to score with the loaded model."""
    scores: Scores
    """Scores by the exported model: float32 [T] each, NaN where not sampled."""
    export: Callable[[Path], None]
    """Write the model folder."""
    load: Callable[[Path], tuple[Tokenizer, Callable[[Sequence[Sample]], Scores]]]
    """Load it with zerogap: tokenizer, and a scorer on the loaded weights."""
    fp32_scores: Callable[[Path], Scores]
    """Load it with zerogap and score the samples in fp32."""
    foreign_scores: Callable[[Path], Scores]
    """Load it with transformers and score the samples in fp32."""


def check_round_trips(
    trip: ModelFolder, engine: Engine, requests: Sequence[GenerateRequest], config: RunConfig
) -> Finding:
    """Check all three round trips.

    Args:
        trip: writes and reads the model folder.
        engine: an idle engine; its memory is released and resumed.
        requests: generated before and after the release.
        config: written to TOML and read back.
    """
    problems, distance = _trip_of_the_model(trip)
    problems += _trip_of_memory(engine, requests)
    if config_from_toml(config_to_toml(config)) != config:
        problems.append("the recipe differs after writing it to TOML and reading it back")
    if problems:
        cure = "do not export this model; please report it"
        return Finding(is_kept=False, figure="; ".join(problems), cure=cure)
    return Finding(is_kept=True, figure=f"export and reload: same tokenizer and bits; transformers: within {distance:.1e} nats; memory release and resume: same bits; recipe to TOML and back: equal")  # fmt: skip


def _trip_of_the_model(trip: ModelFolder) -> tuple[list[str], float]:
    """(problems, largest difference from transformers in nats)."""
    with tempfile.TemporaryDirectory(prefix="zerogap-certify-") as parent:
        folder = Path(parent) / "export"
        trip.export(folder)
        problems = _changed_files(trip.tokenizer_folder, folder)
        tokenizer, score = trip.load(folder)
        problems += _changed_ids(tokenizer, trip.tokenizer)
        again = Reported.of_scores(trip.samples, score(trip.samples))
        del score  # free this copy of the weights before transformers makes its own
        ours = Reported.of_scores(trip.samples, trip.scores)
        if found := differences(again, ours):
            problems.append(f"after export and reload: {found}")
        distance = _distance(trip.foreign_scores(folder), trip.fp32_scores(folder))
    if not distance <= FOREIGN_LIMIT:
        problems.append(f"transformers' log-probs of the exported model differ by up to {distance:.2g} nats (limit {FOREIGN_LIMIT:.0e})")  # fmt: skip
    return problems, distance


def _changed_files(source: Path | None, exported: Path) -> list[str]:
    if source is None:
        return []
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    changed = [n for n in names if _content(exported / n) != (source / n).read_bytes()]
    return [f"tokenizer files differ after export: {', '.join(changed)}"] if changed else []


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _changed_ids(ours: Tokenizer, original: Tokenizer) -> list[str]:
    texts = [text for text in _PROBE_TEXTS if ours.encode(text) != original.encode(text)]
    if not texts:
        return []
    return [f"the exported tokenizer gives other ids for {len(texts)} of {len(_PROBE_TEXTS)} texts, such as {texts[0]!r}"]  # fmt: skip


def _trip_of_memory(engine: Engine, requests: Sequence[GenerateRequest]) -> list[str]:
    before = Reported.of_outputs(engine.generate(requests))
    engine.release_memory_occupation()
    engine.resume_memory_occupation()
    found = differences(Reported.of_outputs(engine.generate(requests)), before)
    return [f"after releasing memory: {found}"] if found else []


def _distance(ours: Scores, theirs: Scores) -> float:
    """Largest |difference|; NaN if a number is missing on one side."""
    a, b = np.concatenate(ours), np.concatenate(theirs)
    is_scored = ~(np.isnan(a) & np.isnan(b))
    return float(np.abs(a - b)[is_scored].max(initial=0.0))
