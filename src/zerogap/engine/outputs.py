"""What leaves the engine: a completion with everything that is known of each token."""

from dataclasses import dataclass

import numpy as np

from zerogap.engine.sequence import Sequence
from zerogap.types import FinishReason, GenerateOutput, version_spans


@dataclass(frozen=True)
class GenerateProgress:
    """How far a ``generate`` call is, after a step."""

    num_finished: int
    """Completions that ended."""
    num_sequences: int
    """Completions in all."""
    num_tokens: int
    """Tokens drawn for them so far."""


@dataclass(frozen=True, kw_only=True)
class StreamedOutput:
    """A completion so far; each one repeats what came before it."""

    rid: str
    index: int
    """Which of the request's n siblings."""
    output_ids: np.ndarray
    """int32 [C]"""
    output_log_probs: np.ndarray
    """float32 [C], nats"""
    text: str | None
    """Text that will not change any more: unfinished characters and possible beginnings of a stop
    string are held back. None if the engine has no detokenizer."""
    output: GenerateOutput | None
    """The whole output, once the completion has ended."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it goes on."""
        return self.output.finish_reason if self.output else None


def build_streamed(sequence: Sequence, output: GenerateOutput | None) -> StreamedOutput:
    """What a stream shows of a sequence now; ``output`` if it has ended."""
    return StreamedOutput(
        rid=sequence.rid,
        index=sequence.index,
        output_ids=sequence.output_ids.copy(),
        output_log_probs=sequence.log_probs[: sequence.num_output].copy(),
        text=output.text if output else sequence.stop.visible_text(),
        output=output,
    )


def build_output(sequence: Sequence, reason: FinishReason, text: str | None) -> GenerateOutput:
    """What the caller gets of a sequence that has ended."""
    num_output = sequence.num_output
    return GenerateOutput(
        rid=sequence.rid,
        index=sequence.index,
        prompt_ids=sequence.prompt_ids,
        output_ids=sequence.output_ids.copy(),
        output_log_probs=sequence.log_probs[:num_output].copy(),
        kept_log_mass=sequence.kept_log_mass[:num_output].copy(),
        finish_reason=reason,
        weight_versions=version_spans(sequence.versions[:num_output]),
        seed=sequence.seed,
        num_cached_tokens=sequence.num_cached_tokens,
        num_retractions=sequence.num_retractions,
        text=text,
    )
