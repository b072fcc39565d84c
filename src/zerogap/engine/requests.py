"""The door: checks of a request before it gets in, and its form inside.

A request that cannot be served is refused here, with the numbers; nothing is clipped to fit. Inside, a request is
``params.n`` sequences; each leaves as one output, exactly once.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from zerogap.engine.logit_edits import LogitEdits
from zerogap.engine.prefix_cache import BASE_WEIGHTS, WeightsName
from zerogap.engine.sequence import ScoreTask, Sequence, num_pages_for
from zerogap.engine.stopping import Detokenizer, StopConditions
from zerogap.errors import InvalidRequest, RequestTooLong
from zerogap.kernels import PAGE_SIZE
from zerogap.types import GenerateOutput, GenerateRequest, SamplingParams


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the model and the KV cache can hold, and what ends a completion."""

    vocab_limit: int
    """Ids from here on are outside the vocabulary."""
    max_positions: int
    num_pages: int
    eos_token_ids: frozenset[int]
    detokenizer: Detokenizer | None
    weights: frozenset[WeightsName] = frozenset({BASE_WEIGHTS})
    """The (policy, adapter) names that a request may use."""


@dataclass(eq=False)
class OpenRequest:
    """A request inside the engine."""

    sequences: list[Sequence]
    is_owned: bool
    """Whether a caller takes the outputs from here; otherwise ``step`` returns them."""
    outputs: list[GenerateOutput | None] = field(init=False)
    num_open: int = field(init=False)

    def __post_init__(self) -> None:
        self.outputs = [None] * len(self.sequences)
        self.num_open = len(self.sequences)


def check_request(request: GenerateRequest, limits: Limits) -> None:
    """Refuse a request that cannot be served.

    Raises:
        InvalidRequest: ids or parameters that make no sense here.
        RequestTooLong: it does not fit the model's context or the KV cache.
    """
    params, what = request.sampling_params, f"request {request.rid}"
    if (request.policy, request.adapter) not in limits.weights:
        msg = f"{what}: policy = {request.policy!r} with adapter = {request.adapter!r} is not served here; use one of {sorted(limits.weights)} (policy, adapter): the empty names mean the engine's model without an adapter"
        raise InvalidRequest(msg)
    check_ids(request.input_ids, limits, what)
    check_length(len(request.input_ids), params.max_new_tokens, limits, what)
    if params.stop and limits.detokenizer is None:
        msg = f"{what}: stop = {params.stop} needs text, but this engine has no detokenizer; build it with one, or use stop_token_ids"
        raise InvalidRequest(msg)
    bad_bias = {
        i: bias
        for i, bias in params.logit_bias.items()
        if i >= limits.vocab_limit or math.isnan(bias) or bias == math.inf
    }
    if bad_bias:
        msg = f"{what}: logit_bias {bad_bias}: ids must be below {limits.vocab_limit} and values finite (or -inf, which bans)"
        raise InvalidRequest(msg)
    if params.sampling_seed is not None and not -(2**63) <= params.sampling_seed < 2**63:
        msg = f"{what}: sampling_seed = {params.sampling_seed} does not fit 64 bits; choose one in [-2**63, 2**63)"
        raise InvalidRequest(msg)


def check_ids(ids: tuple[int, ...], limits: Limits, what: str) -> None:
    """Refuse an empty prompt and ids outside the vocabulary."""
    if not ids:
        msg = f"{what}: input_ids is empty, but a model needs at least one token to continue; begin with the beginning-of-sequence id"
        raise InvalidRequest(msg)
    outside = [i for i in ids if not 0 <= i < limits.vocab_limit]
    if outside:
        msg = f"{what}: input_ids {outside[:5]} are outside the vocabulary of {limits.vocab_limit} ids; use ids of this model's tokenizer"
        raise InvalidRequest(msg)


def check_length(num_prompt: int, max_new_tokens: int, limits: Limits, what: str) -> None:
    """Refuse a request that could not finish even alone."""
    total = num_prompt + max_new_tokens
    if total > limits.max_positions:
        msg = f"{what}: {num_prompt} prompt tokens + max_new_tokens {max_new_tokens} = {total} exceed the model's {limits.max_positions} positions; shorten the prompt or ask for at most {max(0, limits.max_positions - num_prompt)} tokens"
        raise RequestTooLong(msg)
    # The last drawn token never enters a forward pass, so it needs no slot.
    num_rows = total - (max_new_tokens > 0)
    if num_pages_for(num_rows) > limits.num_pages:
        room = limits.num_pages * PAGE_SIZE
        msg = f"{what}: {num_prompt} prompt tokens + max_new_tokens {max_new_tokens} need {num_rows} KV slots, but the cache has {room}; raise engine.kv_cache_tokens or shorten the request"
        raise RequestTooLong(msg)


def open_request(
    request: GenerateRequest, limits: Limits, *, arrival: int, seed: int, is_owned: bool
) -> OpenRequest:
    """Make the sequences of a checked request; ``seed`` is for one without a seed of its own."""
    params = request.sampling_params
    seed = seed if params.sampling_seed is None else params.sampling_seed
    prompt_ids = np.array(request.input_ids, np.int32)
    prompt_ids.setflags(write=False)
    sequences = []
    for index in range(params.n):
        stop = StopConditions(
            params, eos_token_ids=limits.eos_token_ids, detokenizer=limits.detokenizer
        )
        bannable = [i for i in stop.stop_ids if i < limits.vocab_limit]
        sequences.append(
            Sequence(
                rid=request.rid,
                index=index,
                order=(arrival, index),
                prompt_ids=prompt_ids,
                params=params,
                seed=seed,
                stop=stop,
                weights=(request.policy, request.adapter),
                edits=LogitEdits(params, prompt_ids, bannable) if params.edits_logits else None,
            )
        )
    return OpenRequest(sequences, is_owned)


def open_score(
    ids: tuple[int, ...], *, start: int, temperature: float, limits: Limits, arrival: int
) -> Sequence:
    """Make a sequence whose tokens are scored instead of continued.

    Raises:
        InvalidRequest, RequestTooLong: the ids cannot be scored here.
    """
    what = f"score of {len(ids)} ids"
    check_ids(ids, limits, what)
    check_length(len(ids), 0, limits, what)
    if not 1 <= start <= len(ids):
        msg = f"{what}: start = {start} is outside [1, {len(ids)}]: token 0 has no predecessor to score it from; use start in that range"
        raise InvalidRequest(msg)
    params = SamplingParams(temperature=temperature, max_new_tokens=0)
    log_probs = np.zeros(len(ids) - start, np.float32)
    return Sequence(
        rid=f"score-{arrival}",
        index=0,
        order=(arrival, 0),
        prompt_ids=np.array(ids, np.int32),
        params=params,
        seed=0,
        stop=StopConditions(params, eos_token_ids=frozenset(), detokenizer=None),
        score=ScoreTask(start, params.score_temperature, log_probs),
    )
