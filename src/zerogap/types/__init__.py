"""Data that passes between rooms: sampling parameters, requests and outputs, samples, groups, outcomes.

Dataclasses and numpy arrays; no torch. Everything here is frozen and checked once, on creation.
"""

from zerogap.types.capability import Capability, needed_capabilities
from zerogap.types.columns import Ragged
from zerogap.types.exclusion import Exclusion, counts_in_group, exclusion_reason
from zerogap.types.generation import (
    CompletionUpdate,
    FinishReason,
    GenerateOutput,
    GenerateRequest,
)
from zerogap.types.outcome import Outcome
from zerogap.types.sample import SAMPLE_COLUMNS, Group, Sample, Source, Turn, WeightVersionSpan
from zerogap.types.sampling import SamplingParams

__all__ = [
    "SAMPLE_COLUMNS",
    "Capability",
    "CompletionUpdate",
    "Exclusion",
    "FinishReason",
    "GenerateOutput",
    "GenerateRequest",
    "Group",
    "Outcome",
    "Ragged",
    "Sample",
    "SamplingParams",
    "Source",
    "Turn",
    "WeightVersionSpan",
    "counts_in_group",
    "exclusion_reason",
    "needed_capabilities",
]
