"""Small samples made by hand."""

from collections.abc import Iterable, Sequence

import numpy as np

from zerogap.types import FinishReason, GenerateOutput, Ragged, Sample


def make_output(prompt_ids=(256, 97), output_ids=(98, 257), **changes) -> GenerateOutput:
    """A completed output of a version-0 policy with log-probs -0.5."""
    num_out = len(output_ids)
    fields = {
        "rid": "r",
        "index": 0,
        "prompt_ids": np.array(prompt_ids, np.int32),
        "output_ids": np.array(output_ids, np.int32),
        "output_log_probs": np.full(num_out, -0.5, np.float32),
        "kept_log_mass": np.zeros(num_out, np.float32),
        "finish_reason": FinishReason("stop", matched=257),
        "weight_version": np.zeros(num_out, np.int32),
        "seed": 1,
        "text": "b",
    }
    return GenerateOutput(**(fields | changes))


def completed_sample(text: str = "b", group_id: str = "g") -> Sample:
    return Sample.from_output(make_output(text=text), group_id=group_id, temperature=1.0)


def ragged(rows: Iterable[Sequence[int]]) -> Ragged:
    """From one list a token."""
    arrays = [np.array(row, np.int32) for row in rows]
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
    return Ragged(np.concatenate([np.empty(0, np.int32), *arrays]), offsets)
