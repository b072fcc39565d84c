"""Requests to an engine, and its outputs."""

import itertools
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from zerogap.types.columns import Ragged
from zerogap.types.sampling import SamplingParams

_request_numbers = itertools.count()


def _new_rid() -> str:
    return f"r{next(_request_numbers)}"


@dataclass(frozen=True)
class FinishReason:
    """Why a completion ended."""

    kind: Literal["stop", "length", "abort"]
    matched: int | str | None = None
    """The stop id or stop string, for ``stop``."""
    message: str | None = None
    """What happened, for ``abort``."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest:
    """One prompt, as token ids, to be continued ``sampling_params.n`` times."""

    input_ids: tuple[int, ...]
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    rid: str = field(default_factory=_new_rid)
    """Unique among live requests; the engine refuses a second one with the same rid."""
    policy: str = ""
    """The generator's model that continues it; empty for its only one."""
    adapter: str = ""
    """Name of the adapter on that model; empty for none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_ids", tuple(map(int, self.input_ids)))


@dataclass(frozen=True, kw_only=True)
class GenerateOutput:
    """One completion. Arrays of length C have one entry per sampled token, stop token included."""

    rid: str
    index: int
    """Number of the completion within its request, from 0."""
    prompt_ids: np.ndarray
    """int32 [P]"""
    output_ids: np.ndarray
    """int32 [C]"""
    output_log_probs: np.ndarray
    """float32 [C], nats: log_softmax(logits after penalties / temperature) at the drawn id, whole vocabulary."""
    kept_log_mass: np.ndarray
    """float32 [C]: log mass of the ids that could be drawn; 0 without truncation."""
    finish_reason: FinishReason
    weight_version: np.ndarray
    """int32 [C]: version of the weights that sampled the token."""
    seed: int
    """The sampling seed; the same request with this seed gives the same tokens."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""
    num_retractions: int = 0
    text: str | None = None
    """Decoded completion, stop string trimmed; None if the engine has no detokenizer."""
    kept_sets: Ragged | None = None
    """C int32 lists of the ids that could be drawn, as ``Sample.kept_sets``; None if not recorded."""
    routes: np.ndarray | None = None
    """uint8 or uint16 [P + C - 1, L, k]: the experts of every token of prompt and completion but the last, as
    ``Sample.routes``; None for a dense model or if not recorded."""


@dataclass(frozen=True, kw_only=True)
class CompletionUpdate:
    """A completion so far, from its first token."""

    rid: str
    index: int
    """Number of the completion within its request, from 0."""
    output_ids: np.ndarray
    """int32 [C]"""
    output_log_probs: np.ndarray
    """float32 [C], nats"""
    text: str | None
    """Final text: incomplete characters and possible beginnings of a stop string are held back. None if the generator
    returns no text."""
    output: GenerateOutput | None
    """The whole output if the completion has ended, else None."""

    @classmethod
    def ended(cls, output: GenerateOutput) -> "CompletionUpdate":
        """The last update of a completion."""
        return cls(
            rid=output.rid,
            index=output.index,
            output_ids=output.output_ids,
            output_log_probs=output.output_log_probs,
            text=output.text,
            output=output,
        )
