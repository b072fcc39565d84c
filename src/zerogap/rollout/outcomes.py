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
    params = request.sampling_params
    if output is None:
        output_ids, outcome = [], Outcome.INFRASTRUCTURE_FAILED
        problem = "the generator returned no output for this completion"
    elif problem := tampering(request, output, vocab_limit):
        output_ids, outcome = output.output_ids.tolist(), Outcome.TAMPERED
    else:
        return Sample.from_output(output, group_id=group_id, temperature=params.score_temperature)
    prompt = Sample.of_prompt(
        request.input_ids,
        group_id=group_id,
        rollout_id=f"{group_id}/{index}",
        temperature=params.score_temperature,
    )
    # The ids are for people to read. Log-probs of impossible ids mean nothing, so there are none.
    written = prompt.append(
        output_ids,
        source=Source.POLICY,
        finish_reason=FinishReason("abort", message=problem),
        seed=params.sampling_seed or 0,
    )
    return written.failed(outcome, problem)


def tampering(request: GenerateRequest, output: GenerateOutput, vocab_limit: int) -> str:
    """How the ids of the output contradict the request or the vocabulary; empty if they do not."""
    if output.prompt_ids.tolist() != list(request.input_ids):
        return "the generator continued other prompt ids than it was given"
    outside = output.output_ids[output.output_ids >= vocab_limit]
    if len(outside):
        return f"the generator sampled the ids {outside[:5].tolist()}, but the tokenizer has {vocab_limit} ids"
    return ""
