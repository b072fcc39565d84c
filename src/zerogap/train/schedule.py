"""The learning rate of a step, as a pure function of the step's number."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_at(
    step: int, *, peak: float, schedule: Schedule, warmup_steps: int, total_steps: int
) -> float:
    """Learning rate of step ``step``, counted from 0.

    Steps [0, warmup_steps) climb in equal parts from 0 (excluded) to ``peak`` (excluded); then ``constant`` stays
    there, ``linear`` and ``cosine`` fall so that 0 would be reached by step ``total_steps``, the first that is not
    taken: no step of the run is wasted on a rate of 0.
    """
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return peak
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return peak * (1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
