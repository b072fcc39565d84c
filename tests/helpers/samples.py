"""Small samples made by hand."""

import numpy as np

from zerogap.types import FinishReason, GenerateOutput, Sample, WeightVersionSpan


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
        "weight_versions": (WeightVersionSpan(0, 0, num_out),),
        "seed": 1,
        "text": "b",
    }
    return GenerateOutput(**(fields | changes))


def completed_sample(text: str = "b", group_id: str = "g") -> Sample:
    return Sample.from_output(make_output(text=text), group_id=group_id, temperature=1.0)
