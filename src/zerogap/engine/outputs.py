"""What leaves the engine: a completion with everything that is known of each token."""

from dataclasses import dataclass

from zerogap.engine.sequence import Sequence
from zerogap.types import CompletionUpdate, FinishReason, GenerateOutput


@dataclass(frozen=True)
class GenerateProgress:
    """How far a ``generate`` call is, after a step."""

    num_finished: int
    """Completions that ended."""
    num_sequences: int
    """Completions in all."""
    num_tokens: int
    """Tokens drawn for them so far."""


def build_update(sequence: Sequence) -> CompletionUpdate:
    """What a caller sees of a sequence that goes on."""
    return CompletionUpdate(
        rid=sequence.rid,
        index=sequence.index,
        output_ids=sequence.output_ids.copy(),
        output_log_probs=sequence.log_probs[: sequence.num_output].copy(),
        text=sequence.stop.visible_text(),
        output=None,
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
        weight_version=sequence.versions[:num_output].copy(),
        seed=sequence.seed,
        num_cached_tokens=sequence.num_cached_tokens,
        num_retractions=sequence.num_retractions,
        text=text,
    )
