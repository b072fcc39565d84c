"""Prompts as people have them: text, messages or ids, one or several; the engine takes requests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zerogap.errors import InvalidRequest
from zerogap.types import GenerateRequest, SamplingParams

Messages = Sequence[Mapping[str, Any]]
"""A conversation: objects with a role and a content."""
Prompt = GenerateRequest | str | Messages | Sequence[int] | np.ndarray
"""A request, text that is continued as it is, messages for the chat template, or ids."""
EncodePrompt = Callable[[str | Messages], Sequence[int]]
"""Text or messages -> ids."""

_ACCEPTED = "give text, a list of messages ({'role': ..., 'content': ...}), a list of ids, a GenerateRequest, or a list of these"


def as_requests(
    prompts: Prompt | Sequence[Prompt],
    sampling_params: SamplingParams | None,
    encode: EncodePrompt | None,
) -> list[GenerateRequest]:
    """One request a prompt, in their order.

    Args:
        prompts: one prompt or several.
        sampling_params: of all prompts that are not requests; None: the defaults.
        encode: None: only ids and requests are accepted.

    Raises:
        InvalidRequest: something is none of these, or has no ids without a tokenizer, or a request is given parameters twice.
    """
    if _is_prompt(prompts):
        return [_request(prompts, sampling_params, encode)]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        msg = f"a prompt of type {type(prompts).__name__} cannot be continued; {_ACCEPTED}"
        raise InvalidRequest(msg)
    return [_request(prompt, sampling_params, encode) for prompt in prompts]


def _is_prompt(given: object) -> bool:
    """Whether it is one prompt; an empty list is none."""
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return len(given) > 0 and (_are_ids(given) or _are_messages(given))
    return isinstance(given, GenerateRequest | str | np.ndarray)


def _are_ids(given: Sequence[object]) -> bool:
    return all(isinstance(entry, int | np.integer) and not isinstance(entry, bool) for entry in given)  # fmt: skip


def _are_messages(given: Sequence[object]) -> bool:
    return all(isinstance(entry, Mapping) for entry in given)


def _request(
    prompt: Any,  # noqa: ANN401 - what a caller gives is checked here
    sampling_params: SamplingParams | None,
    encode: EncodePrompt | None,
) -> GenerateRequest:
    if isinstance(prompt, GenerateRequest):
        if sampling_params is not None:
            msg = f"request {prompt.rid} has sampling_params of its own, and others were given beside it; give them in one place"
            raise InvalidRequest(msg)
        return prompt
    if not _is_prompt(prompt):
        msg = f"a prompt of type {type(prompt).__name__} cannot be continued ({str(prompt)[:60]!r}); {_ACCEPTED}"
        raise InvalidRequest(msg)
    if isinstance(prompt, np.ndarray):
        if prompt.ndim != 1 or prompt.dtype.kind not in "iu":
            msg = f"an array of shape {prompt.shape} and type {prompt.dtype} is no prompt; give one dimension of integer ids"
            raise InvalidRequest(msg)
        ids = prompt.tolist()
    elif _are_ids(prompt) and not isinstance(prompt, str):
        ids = prompt
    elif encode is None:
        what = "text" if isinstance(prompt, str) else "messages"
        msg = f"this engine has no tokenizer and cannot read {what}; give ids, or build the engine with load_policy(...).engine(...)"
        raise InvalidRequest(msg)
    else:
        ids = encode(prompt)
    return GenerateRequest(
        input_ids=tuple(ids), sampling_params=sampling_params or SamplingParams()
    )
