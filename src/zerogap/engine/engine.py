"""The engine over a model in this process: whole requests, scores, and weights in and out."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from torch import Tensor

from zerogap.engine.core import EngineCore
from zerogap.engine.prompts import EncodePrompt, Prompt, as_requests
from zerogap.engine.requests import Limits, OpenRequest, open_score
from zerogap.engine.runner import ModelRunner
from zerogap.engine.stopping import Detokenizer
from zerogap.errors import ConfigError, EngineStateError
from zerogap.kernels import PAGE_SIZE, Gemm
from zerogap.models import CausalLM
from zerogap.types import GenerateOutput, SamplingParams
from zerogap.weights import (
    Place,
    WeightDigest,
    copy_weights,
    digest_weights,
    named_weights,
    places_of,
)


@dataclass(frozen=True)
class GenerateProgress:
    """How far a ``generate`` call is, after a step."""

    num_finished: int
    """Completions that have ended."""
    num_sequences: int
    """Completions in all."""
    num_tokens: int
    """Tokens drawn for them so far."""


_VERSION = attrgetter("_version")


class Engine(EngineCore):
    """Generates from, and scores with, a ``CausalLM`` that may at the same time be trained.

    The model's parameters are read in place. Change them between ``begin_weight_update`` and ``end_weight_update``
    (``weights.Publisher`` calls both), or all at once between two steps and call ``set_weight_version`` afterwards: without it
    the engine refuses to go on.

    Example:
        ``load_policy("Qwen/Qwen3-0.6B").engine().generate("The capital of France is", SamplingParams(n=4))``
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        kv_cache_tokens: int,
        eos_token_ids: Collection[int],
        max_running: int = 256,
        max_scheduled_tokens: int = 1024,
        prefix_cache: bool = True,
        detokenizer: Detokenizer | None = None,
        encode: EncodePrompt | None = None,
        gemm: Gemm = "exact",
        weight_version: int = 0,
        seed: int = 0,
    ) -> None:
        """Allocate the KV cache.

        Args:
            model: its parameters stay the caller's.
            kv_cache_tokens: size of the KV cache; rounded down to whole pages of 16.
            eos_token_ids: every id that ends a completion, from the tokenizer and the model's configs.
            max_running: most sequences that hold KV pages at once.
            max_scheduled_tokens: most rows that a forward pass computes; longer prompts are cut into chunks.
            prefix_cache: share the KV of equal beginnings between requests. A request's siblings always share
                their prompt.
            detokenizer: (ids, skip_special) -> text; None gives no text and allows no stop strings.
            encode: text or messages -> ids; None takes only ids.
            gemm: GEMM kernels of the passes.
            weight_version: of the model's present weights.
            seed: default sampling seed, for requests without one; 0 or more.
        """
        limits = Limits(
            vocab_limit=model.head.vocab_limit,
            max_positions=model.config.max_positions,
            num_pages=kv_cache_tokens // PAGE_SIZE,
            eos_token_ids=frozenset(eos_token_ids),
            detokenizer=detokenizer,
        )
        _check("kv_cache_tokens", kv_cache_tokens, PAGE_SIZE, f"one page of {PAGE_SIZE}")
        _check("max_running", max_running, 1)
        why = f"max_running ({max_running}), as each running sequence decodes a token a step"
        _check("max_scheduled_tokens", max_scheduled_tokens, max_running, why)
        _check("weight_version", weight_version, 0)
        _check("seed", seed, 0)
        self._model, self._encode = model, encode
        self._parameters = list(model.parameters())
        self._num_changes = self._count_changes()
        super().__init__(
            ModelRunner(model, num_pages=limits.num_pages, gemm=gemm),
            limits,
            max_running=max_running,
            max_scheduled_tokens=max_scheduled_tokens,
            prefix_cache=prefix_cache,
            weight_version=weight_version,
            seed=seed,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        on_progress: Callable[[GenerateProgress], None] | None = None,
    ) -> list[GenerateOutput]:
        """Continue all prompts to their ends.

        Args:
            prompts: one or a list: text, continued as it is; a list of messages, for the chat template; a list of ids; or a
                request. All are checked before any starts. Text and messages need an engine with ``encode``.
            sampling_params: of the prompts that are not requests.
            on_progress: called after every step, in this thread; it may abort, pause and continue, and set
                another weight version.

        Returns:
            One output a completion, in the order of prompts; a prompt's n siblings in order of index.
            An aborted one is an output like any other, with what it had.

        Raises:
            InvalidRequest, RequestTooLong: a request cannot be served; none was started.
            EngineStateError: the engine is paused, its memory is released or a weight update has not ended, so the
                call would wait forever. Requests are aborted.
            NumericsError: a log-prob was not finite. Requests are aborted.
        """
        requests = as_requests(prompts, sampling_params, self._encode)
        self._loop.check(requests)
        opened = [self._loop.open(request, is_owned=True) for request in requests]
        try:
            while any(request.num_open for request in opened):
                self._refuse_if_stopped()
                self._loop.advance()
                if on_progress is not None:
                    on_progress(_progress(opened))
        finally:
            for request in opened:
                self._loop.abort(request, "the caller stopped waiting")
        if self.is_idle:
            self.check_integrity()
        return [output for request in opened for output in request.outputs if output is not None]

    def score(
        self, input_ids: Sequence[int], *, start: int = 1, temperature: float = 1.0
    ) -> np.ndarray:
        """Log-probs of given tokens, by the kernels and pages that generation uses.

        Args:
            input_ids: prompt and completion, or any text.
            start: first token that is scored, at least 1: nothing predicts the first token.
            temperature: logits are divided by it; below 1e-6 means 1, as for greedy requests.

        Returns:
            float32 [len(input_ids) - start], nats. Bit for bit what generation reported for the same tokens
            at the same weights and temperature without penalties.

        Raises:
            InvalidRequest, RequestTooLong: the ids cannot be scored here.
            EngineStateError: the engine is paused, its memory released or a weight update not ended.
        """
        self._refuse_if_stopped()
        sequence = open_score(
            tuple(np.asarray(input_ids).tolist()),
            start=start,
            temperature=temperature,
            limits=self._loop.limits,
            arrival=self._loop.next_arrival(),
        )
        assert sequence.score is not None, "open_score makes a scored sequence"
        if len(sequence.score.log_probs):
            self._scheduler.add(sequence)
            try:
                while not sequence.is_finished:
                    self._loop.advance()
            finally:
                if not sequence.is_finished:
                    self._scheduler.finish(sequence)
        return sequence.score.log_probs

    def _count_changes(self) -> int:
        """How often the parameters were changed in place. torch counts, whoever does it; its own fused optimizers do not count."""
        return sum(map(_VERSION, self._parameters))

    def _use_version(self, version: int) -> None:
        super()._use_version(version)
        self._num_changes = self._count_changes()

    def _refuse_if_changed(self) -> None:
        if self._count_changes() != self._num_changes:
            msg = f"the model's weights changed after version {self.weight_version} was set: its tokens would be marked with weights that did not draw them, and cached keys and values are of other weights; call set_weight_version({self.weight_version + 1}) after each update"
            raise EngineStateError(msg)

    def digest(self) -> WeightDigest:
        """Which weights forward passes read now."""
        return digest_weights(named_weights(self._model))

    def places(self) -> Mapping[str, Place]:
        """Where the tensors that forward passes read lie, by name; they may belong to the trainer."""
        return places_of(named_weights(self._model))

    def write_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy every tensor into the one of its name, in place: captured graphs stay valid.

        Raises:
            WeightSyncError: these are not exactly this model's tensors; the weights then mix two versions.
            EngineStateError: no weight update has begun.
        """
        if not self.is_updating:
            msg = "write_weights outside a weight update: if it failed half way, tokens would be drawn from a mix of two versions; call begin_weight_update() first"
            raise EngineStateError(msg)
        copy_weights(weights, named_weights(self._model))


def _check(name: str, given: int, least: int, least_name: str = "") -> None:
    if given < least:
        msg = f"engine: {name} = {given} is not allowed: it must be at least {least_name or least}"
        raise ConfigError(msg)


def _progress(opened: list[OpenRequest]) -> GenerateProgress:
    num_sequences = sum(len(request.sequences) for request in opened)
    return GenerateProgress(
        num_finished=num_sequences - sum(request.num_open for request in opened),
        num_sequences=num_sequences,
        num_tokens=sum(s.num_output for request in opened for s in request.sequences),
    )
