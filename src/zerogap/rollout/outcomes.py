"""Makes a sample with an outcome of what the generator returned for one completion."""

from zerogap.types import (
    FinishReason,
    GenerateOutput,
    GenerateRequest,
    Outcome,
    Sample,
    Source,
)


def sample_of(
    request: GenerateRequest,
    output: GenerateOutput | None,
    *,
    group_id: str,
    index: int,
    vocab_limit: int,
) -> Sample:
    """The sample of one completion, without a reward. A failure is typed and trains nothing.

    Args:
        request: the request.
        output: the output for sibling ``index``, if the generator returned one.
        group_id: of the prompt.
        index: sibling within the group.
        vocab_limit: ids from here on are outside the vocabulary.

    Raises:
        DataError: a sampled token has no finite log-prob of at most 0, or columns differ in length: the generator
            cannot be trusted at all.
    """
    if output is None:
        detail = "the generator returned no output for this completion"
        return _unscorable(
            request, [], f"{group_id}/{index}", Outcome.INFRASTRUCTURE_FAILED, detail
        )
    output_ids = output.output_ids.tolist()
    if problem := tampering(request, output, vocab_limit):
        return _unscorable(request, output_ids, f"{group_id}/{index}", Outcome.TAMPERED, problem)
    return Sample.from_output(
        output, group_id=group_id, temperature=request.sampling_params.score_temperature
    )


def tampering(request: GenerateRequest, output: GenerateOutput, vocab_limit: int) -> str:
    """How the ids of the output contradict the request or the vocabulary; empty if they do not."""
    if output.prompt_ids.tolist() != list(request.input_ids):
        return "the generator continued other prompt ids than it was given"
    outside = output.output_ids[output.output_ids >= vocab_limit]
    if len(outside):
        return f"the generator sampled the ids {outside[:5].tolist()}, but the tokenizer has {vocab_limit} ids"
    return ""


def _unscorable(
    request: GenerateRequest, output_ids: list[int], rollout_id: str, outcome: Outcome, detail: str
) -> Sample:
    """A sample of the ids, for people to read. It has no log-probs: those of impossible ids mean nothing."""
    prompt = Sample.of_prompt(
        request.input_ids,
        group_id=rollout_id.rpartition("/")[0],
        rollout_id=rollout_id,
        temperature=request.sampling_params.score_temperature,
    )
    written = prompt.append(
        output_ids,
        source=Source.POLICY,
        finish_reason=FinishReason("abort", message=detail),
        seed=request.sampling_params.sampling_seed or 0,
    )
    return written.failed(outcome, detail)
