"""transformers' ``generate`` as an engine: a second implementation of the same model, with its own weights.

It serves one request at a time. The siblings are one batch of equal length, so nothing is padded. The noise is torch's,
seeded by the request, so the same request at the same weights draws the same tokens whatever else is requested.
``generate`` returns raw logits and processed scores of each step. The log-prob over the whole vocabulary comes from the
logits, the log mass of the kept set from both.

G siblings, C tokens of the longest completion, V vocabulary.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerogap.errors import InvalidRequest, WeightSyncError
from zerogap.foreign.transformers_model import build_model, digest_parameters, write_weights
from zerogap.foreign.transformers_scores import log_probs_of_draws
from zerogap.models import ModelConfig, Precision
from zerogap.types import (
    Capability,
    CompletionUpdate,
    FinishReason,
    GenerateOutput,
    GenerateRequest,
    SamplingParams,
    needed_capabilities,
)
from zerogap.weights import Place, WeightDigest


class TransformersGenerator:
    """A ``rollout.Generator`` over a transformers model of the policy's architecture, with a copy of its weights."""

    capabilities = frozenset(Capability) - {
        Capability.LOGIT_BIAS,
        Capability.MIN_NEW_TOKENS,
        Capability.PENALTIES,
        Capability.STOP_STRINGS,
    }

    def __init__(
        self,
        config: ModelConfig,
        *,
        eos_token_ids: Collection[int],
        vocab_limit: int | None = None,
        decode: Callable[[Sequence[int]], str] | None = None,
        dtype: Precision = "fp32",
        seed: int = 0,
    ) -> None:
        """Build a model without weights: publish to it first (it is a ``weights.WeightSink``).

        Args:
            config: of the policy.
            eos_token_ids: every id that ends a completion.
            vocab_limit: ids from here on are never drawn and carry no mass; None allows the model's whole vocabulary.
            decode: text of ids without special ones; None gives no text.
            dtype: in which transformers computes.
            seed: default sampling seed, for requests without one.
        """
        self._config = config
        self._model = build_model(config, dtype)
        self._eos_token_ids = tuple(sorted(eos_token_ids))
        self._vocab_limit = config.vocab_size if vocab_limit is None else vocab_limit
        self._decode = decode
        self._seed = seed
        self._version: int | None = None
        self._stops: dict[str, threading.Event] = {}
        """One event for each open request; setting it ends the request."""
        # It draws from torch's global random stream, so it serves one request at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="zerogap-transformers")

    @property
    def weight_version(self) -> int | None:
        """Version of its weights; None before the first update, during one, and after a failed one."""
        return self._version

    def begin_weight_update(self) -> None:
        """Refuse to generate from now on."""
        self._version = None

    def write_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy tensors, given by the names of our model, into the tensors of transformers' model.

        Raises:
            WeightSyncError: a tensor has no counterpart of its shape.
        """
        write_weights(self._model, self._config, weights)

    def digest(self) -> WeightDigest:
        """Digest of the weights that ``generate`` reads, in fp32, under the names of our model."""
        return digest_parameters(self._model, self._config)

    def places(self) -> Mapping[str, Place]:
        """Empty: its tensors are copies, with other names."""
        return {}

    def end_weight_update(self, version: int) -> None:
        """The weights are complete: tokens carry ``version`` from now on."""
        self._version = version

    def close(self) -> None:
        """End the thread after its present request."""
        self._thread.shutdown(cancel_futures=True)

    stats = None
    """Transformers has no counters."""

    # A KV cache lives only during one call of transformers' generate: there is nothing to give back.

    def release_memory_occupation(self) -> None:
        """Nothing is held between calls."""

    def resume_memory_occupation(self) -> None:
        """Nothing was given back."""

    async def submit(
        self, request: GenerateRequest, *, with_progress: bool = False
    ) -> AsyncGenerator[CompletionUpdate, None]:
        """As ``rollout.Generator.submit``: one request at a time, and all its completions end together.

        Raises:
            InvalidRequest: this engine does not have the parameter, policy or adapter.
            WeightSyncError: no complete weights are loaded.
        """
        _refuse_unsupported(request)
        if self._version is None:
            msg = "transformers' model has no complete weights, so its tokens would belong to no version; publish to it first"
            raise WeightSyncError(msg)
        stop = self._stops[request.rid] = threading.Event()
        try:
            answer = self._thread.submit(self._answer, request, self._version, stop)
            for output in await asyncio.wrap_future(answer):
                yield CompletionUpdate.ended(output)
        finally:
            stop.set()
            del self._stops[request.rid]

    async def abort(self, rid: str) -> None:
        """End a request after its present token. Unknown rids are ignored."""
        if rid in self._stops:
            self._stops[rid].set()

    @torch.no_grad()
    def _answer(
        self, request: GenerateRequest, version: int, stop: threading.Event
    ) -> list[GenerateOutput]:
        params = request.sampling_params
        seed = self._seed if params.sampling_seed is None else params.sampling_seed
        if not params.max_new_tokens:
            none_C, no_numbers_C = np.zeros(0, np.int32), np.zeros(0, np.float32)
            rows = [(none_C, no_numbers_C, no_numbers_C)] * params.n
            return [self._output(request, i, seed, version, *row) for i, row in enumerate(rows)]
        prompt_GP = torch.tensor([request.input_ids] * params.n)
        # torch's global random stream belongs to user code: restore it afterwards.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made: Any = self._model.generate(
                input_ids=prompt_GP,
                attention_mask=torch.ones_like(prompt_GP),
                generation_config=self._generation_config(params),
                stopping_criteria=[
                    lambda ids_GT, scores: torch.full((len(ids_GT),), stop.is_set())
                ],
            )
        drawn_GC = made.sequences[:, prompt_GP.shape[1] :]
        log_prob_GC, kept_GC = log_probs_of_draws(made, drawn_GC, params, self._vocab_limit)
        outputs = []
        for index, drawn_C in enumerate(drawn_GC.tolist()):
            length = self._length(drawn_C, params)
            columns = (log_prob_GC[index, :length], kept_GC[index, :length])
            ids = np.array(drawn_C[:length], np.int32)
            outputs.append(self._output(request, index, seed, version, ids, *columns))
        return outputs

    def _generation_config(self, params: SamplingParams) -> Any:  # noqa: ANN401 - a type of transformers
        from transformers import GenerationConfig

        ends = self._ends(params)
        drawing = (
            {"do_sample": False}
            if params.is_greedy
            else {
                "do_sample": True,
                "temperature": params.temperature,
                "top_k": max(params.top_k, 0),
                "top_p": params.top_p,
                "min_p": params.min_p or None,
            }
        )
        # transformers fills ended rows with the pad id; the caller cuts it off.
        return GenerationConfig(
            max_new_tokens=params.max_new_tokens,
            eos_token_id=list(ends) or None,
            pad_token_id=0,
            suppress_tokens=list(range(self._vocab_limit, self._config.vocab_size)) or None,
            return_dict_in_generate=True,
            output_logits=True,
            output_scores=True,
            **drawing,
        )

    def _ends(self, params: SamplingParams) -> tuple[int, ...]:
        own = () if params.ignore_eos else self._eos_token_ids
        return (*own, *params.stop_token_ids)

    def _length(self, drawn_C: list[int], params: SamplingParams) -> int:
        ends = self._ends(params)
        stops = [place + 1 for place, token in enumerate(drawn_C) if token in ends]
        return stops[0] if stops else len(drawn_C)

    def _output(
        self,
        request: GenerateRequest,
        index: int,
        seed: int,
        version: int,
        ids_C: np.ndarray,
        log_prob_C: np.ndarray,
        kept_C: np.ndarray,
    ) -> GenerateOutput:
        has_ended = len(ids_C) > 0 and int(ids_C[-1]) in self._ends(request.sampling_params)
        is_full = len(ids_C) == request.sampling_params.max_new_tokens
        if has_ended:
            reason = FinishReason("stop", int(ids_C[-1]))
        elif is_full:
            reason = FinishReason("length")
        else:
            reason = FinishReason("abort", message="aborted by abort")
        return GenerateOutput(
            rid=request.rid,
            index=index,
            prompt_ids=np.array(request.input_ids, np.int32),
            output_ids=ids_C,
            output_log_probs=log_prob_C,
            kept_log_mass=kept_C,
            finish_reason=reason,
            weight_version=np.full(len(ids_C), version, np.int32),
            seed=seed,
            text=None if self._decode is None else self._decode(ids_C.tolist()),
        )


def _refuse_unsupported(request: GenerateRequest) -> None:
    missing = needed_capabilities(request.sampling_params) - TransformersGenerator.capabilities
    if missing or request.policy or request.adapter:
        names = [*sorted(missing), *filter(None, (request.policy, request.adapter))]
        msg = f'the transformers engine cannot serve {", ".join(names)}: missing there, or defined differently; leave that out, or use engine.backend = "zerogap"'
        raise InvalidRequest(msg)
