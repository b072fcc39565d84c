"""The probe batch: three short prompts, two with a common prefix, with several completions each.

The lengths of prompts and completions make decoding share, fill and cross pages (16 tokens), whatever the model.
"""

from collections.abc import Sequence
from dataclasses import replace

from zerogap.data import Tokenizer
from zerogap.errors import ConfigError
from zerogap.types import GenerateOutput, GenerateRequest, Sample, SamplingParams

NEW_TOKENS = 12
_LONG, _COMMON, _OTHER, _SHORT = 41, 32, 9, 3
_COPIES = (4, 4, 2)
_TEXT = (
    "A policy is asked a question, answers it in several ways, and is told which answers were good. "
    "What it was good for becomes more likely, what it was bad for less, and the two sides that compute "
    "how likely an answer is must agree, or the lesson is about another policy than the one that learns. "
)


def probe_requests(
    tokenizer: Tokenizer, sampling: SamplingParams, *, max_positions: int
) -> list[GenerateRequest]:
    """Requests for ten completions of three prompts, with ``sampling`` except for length, stops and seed.

    Raises:
        ConfigError: the model's context is too short for them.
    """
    if max_positions < _LONG + NEW_TOKENS:
        msg = f"the model has {max_positions} positions, but the checks need {_LONG + NEW_TOKENS} to cross pages while decoding; certify a model with a longer context"
        raise ConfigError(msg)
    ids = tokenizer.encode(_TEXT * 2, add_special=True)
    long = ids[:_LONG]
    prompts = (long, long[:_COMMON] + ids[_LONG : _LONG + _OTHER], ids[:_SHORT])
    return [
        GenerateRequest(
            input_ids=tuple(prompt),
            sampling_params=replace(
                sampling,
                n=copies,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=0,
                ignore_eos=True,
                stop=(),
                stop_token_ids=(),
                sampling_seed=number,
            ),
            rid=f"certify-{number}",
        )
        for number, (prompt, copies) in enumerate(zip(prompts, _COPIES, strict=True))
    ]


def samples_of(outputs: Sequence[GenerateOutput], temperature: float) -> list[Sample]:
    """Scored samples. The reward is the index in the group, so that every group has a signal."""
    return [
        Sample.from_output(output, group_id=output.rid, temperature=temperature).scored(
            output.index
        )
        for output in outputs
    ]
