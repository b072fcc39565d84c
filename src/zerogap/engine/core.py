"""The engine under its owner's control: add, step, abort, pause, continue, flush, release, change the weight version.

Everything but ``step`` happens between two steps, in the caller's thread. Not thread-safe: one thread makes all calls,
and callbacks run in it. ``AsyncEngine`` owns such a thread and serves many callers.
"""

from typing import Literal

from zerogap.engine.loop import EngineLoop
from zerogap.engine.prefix_cache import PrefixCache
from zerogap.engine.requests import Limits
from zerogap.engine.runner import Runner
from zerogap.engine.scheduler import Scheduler
from zerogap.engine.stats import EngineStats
from zerogap.errors import EngineError, EngineStateError, InvalidRequest
from zerogap.types import CompletionUpdate, GenerateOutput, GenerateRequest

PauseMode = Literal["abort", "retract", "in_place"]
_STRENGTH = {None: 0, "in_place": 1, "retract": 2, "abort": 3}
"""A second pause may be stronger than the first, never weaker."""


class EngineCore:
    """Requests, steps, pauses and versions, over any ``Runner``."""

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        *,
        max_running: int,
        max_scheduled_tokens: int,
        prefix_cache: bool,
        weight_version: int,
        seed: int,
    ) -> None:
        self._scheduler = Scheduler(
            PrefixCache(limits.num_pages, is_enabled=prefix_cache),
            max_running=max_running,
            max_scheduled_tokens=max_scheduled_tokens,
        )
        self._runner = runner
        self._loop = EngineLoop(
            runner, self._scheduler, limits, weight_version=weight_version, seed=seed
        )
        self._pause: PauseMode | None = None
        self._is_released = False
        self._is_updating = False

    @property
    def weight_version(self) -> int:
        """The version stored with every token drawn from now on."""
        return self._loop.weight_version

    @property
    def is_paused(self) -> bool:
        """Whether steps do nothing until ``continue_generation``."""
        return self._pause is not None

    @property
    def is_released(self) -> bool:
        """Whether steps do nothing until ``resume_memory_occupation``."""
        return self._is_released

    @property
    def is_updating(self) -> bool:
        """Whether a weight update has begun and not ended: the weights may mix two versions."""
        return self._is_updating

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs or waits."""
        return self._loop.is_idle

    @property
    def is_stalled(self) -> bool:
        """Whether a step would do nothing: idle, paused, released, or in the middle of a weight update."""
        return self.is_idle or bool(self.missing_calls)

    @property
    def missing_calls(self) -> list[str]:
        """The calls that must come before a step does anything: each ends a pause, a release or a weight update."""
        is_missing = {
            "continue_generation": self.is_paused,
            "resume_memory_occupation": self.is_released,
            "end_weight_update": self.is_updating,
        }
        return [call for call in is_missing if is_missing[call]]

    @property
    def num_running(self) -> int:
        """Sequences that hold KV pages."""
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        """Sequences that hold none: new, held back or retracted."""
        return len(self._scheduler.waiting)

    @property
    def stats(self) -> EngineStats:
        """Counters up to now."""
        return self._loop.stats.snapshot(
            num_retractions=self._scheduler.num_retractions,
            num_cached_tokens=self._scheduler.num_cached_tokens,
        )

    def add_request(self, request: GenerateRequest, *, is_watched: bool = False) -> None:
        """Queue a request; ``step`` returns its outputs.

        Args:
            request: what to continue.
            is_watched: decode text as tokens are drawn, for ``updates``.

        Raises:
            InvalidRequest: parameters or ids that make no sense here, or a rid that is still open.
            RequestTooLong: it does not fit the model's context or the KV cache.
        """
        self._loop.check([request])
        opened = self._loop.open(request, is_owned=False)
        if is_watched:
            for sequence in opened.sequences:
                sequence.stop.follow_text()

    def updates(self, rid: str) -> list[CompletionUpdate]:
        """The present state of a request's completions that have drawn tokens and have not ended."""
        opened = self._loop.open_requests.get(rid)
        sequences = opened.sequences if opened else []
        return [s.update() for s in sequences if not s.is_finished and s.num_output]

    def step(self) -> list[GenerateOutput]:
        """One forward pass, unless paused, released or idle. Returns the completions that ended since the last call.

        Raises:
            NumericsError: a log-prob was not finite. All requests are aborted and the cache is emptied.
            EngineStateError: there is something to compute, but a weight update has not ended, or weights changed without one.
        """
        if not (self.is_paused or self.is_released or self.is_idle):
            self._refuse_if_updating()
            self._refuse_if_changed()
            self._loop.advance()
        return self.take_outputs()

    def take_outputs(self) -> list[GenerateOutput]:
        """The completions that ended since the last call, by a step or an abort."""
        ready, self._loop.ready = self._loop.ready, []
        return ready

    def is_open(self, rid: str) -> bool:
        """Whether a completion of the request has not ended."""
        return rid in self._loop.open_requests

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> None:
        """End requests now; their callers get the tokens drawn so far. Unknown rids are ignored.

        Args:
            rid: exactly as in the request.
            abort_all: abort every request instead.
        """
        message = "aborted by abort_request"
        if abort_all:
            self._loop.abort_all(message)
        elif rid in self._loop.open_requests:
            self._loop.abort(self._loop.open_requests[rid], message)

    def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Steps do nothing until ``continue_generation``; meanwhile nothing reads weights or writes KV.

        A second pause may be stronger (``in_place``, then ``retract``, then ``abort``); a weaker one changes nothing.

        Args:
            mode: ``abort`` ends all requests with partial outputs. ``retract`` takes running sequences off their
                pages; they are recomputed later, with the weights of that time. ``in_place`` leaves them on their
                pages; they go on with the keys and values they have.
        """
        if mode not in _STRENGTH or mode is None:
            msg = f"pause mode = {mode!r} is unknown; use one of 'abort', 'retract', 'in_place'"
            raise InvalidRequest(msg)
        if _STRENGTH[mode] <= _STRENGTH[self._pause]:
            return
        self._pause = mode
        if mode == "abort":
            self._loop.abort_all("aborted by pause_generation")
        elif mode == "retract":
            for sequence in list(self._scheduler.running):
                self._scheduler.retract(sequence)

    def continue_generation(self) -> None:
        """End a pause; without one nothing happens.

        Raises:
            EngineStateError: the memory is released.
        """
        self._refuse_if_released()
        self._pause = None

    def release_memory_occupation(self) -> None:
        """Give back the memory of the KV cache until ``resume_memory_occupation``; cached prefixes are lost.

        Requests may be added meanwhile; they wait. Releasing twice changes nothing. Weights stay: they belong to the
        trainer.

        Raises:
            EngineStateError: sequences may hold keys and values, since the engine is neither idle nor paused with
                ``retract`` or ``abort``.
        """
        if self.is_released:
            return
        if not (self.is_idle or self._pause in ("retract", "abort")):
            state = f"paused ({self._pause})" if self.is_paused else "not paused"
            msg = f"release_memory_occupation of an engine with {self.num_running} running and {self.num_waiting} waiting sequences, {state}: their keys and values would be lost; finish or abort them, or call pause_generation('retract') first"
            raise EngineStateError(msg)
        self._scheduler.start_namespace()
        self._runner.clear()
        self._is_released = True

    def resume_memory_occupation(self) -> None:
        """Take released memory again, with an empty cache. Without a release nothing happens."""
        # The system gives memory to a page when it is first written.
        self._is_released = False

    def flush_cache(self) -> bool:
        """Empty the prefix cache. Does nothing and returns False while a sequence holds KV pages."""
        if self._scheduler.running:
            return False
        self._scheduler.start_namespace()
        return True

    def set_weight_version(self, version: int) -> None:
        """Declare that the model's weights are now another version; takes effect with the next step.

        Cached prefixes of the old weights are no longer found. Running sequences that have drawn tokens go on with
        their keys and values, unshared (pause with ``retract`` to recompute them); those that have drawn nothing
        start again. Tokens drawn from now on carry the new version.

        Raises:
            InvalidRequest: the version is below 0.
            EngineStateError: a weight update has not ended; call ``end_weight_update`` when the weights are complete.
        """
        self._refuse_if_updating()
        self._use_version(version)

    def begin_weight_update(self) -> None:
        """The weights are about to change: nothing is generated or scored until ``end_weight_update``.

        Requests may be added meanwhile; they wait. After an update that failed half way, call it again to start over.
        """
        self._is_updating = True

    def end_weight_update(self, version: int) -> None:
        """All weights are now those of ``version``; otherwise as ``set_weight_version``.

        Raises:
            InvalidRequest: the version is below 0; the update has not ended.
            EngineStateError: no update has begun.
        """
        if not self.is_updating:
            msg = f"end_weight_update({version}) without a begin_weight_update: tokens may have been drawn while the weights changed; call begin_weight_update() before the first tensor is written"
            raise EngineStateError(msg)
        self._use_version(version)
        self._is_updating = False

    def check_integrity(self) -> None:
        """Check that every page is free, cached or held by a known holder, and that every open sequence waits or runs.

        Raises:
            EngineError: lists the contradictions; the engine has a defect.
        """
        found = self._loop.problems()
        if found:
            msg = f"the engine's state contradicts itself: {'; '.join(found[:10])}. This is a defect of the engine: report it, and go on with a new engine"
            raise EngineError(msg)

    def _refuse_if_stopped(self) -> None:
        """Refuse a call that would wait for tokens forever."""
        if self.is_paused:
            msg = f"the engine is paused ({self._pause}) and would block forever; call continue_generation() first"
            raise EngineStateError(msg)
        self._refuse_if_released()
        self._refuse_if_updating()
        self._refuse_if_changed()

    def _refuse_if_changed(self) -> None:
        """Refuse to draw tokens from weights that changed after their version was set; needs a model."""

    def _use_version(self, version: int) -> None:
        if version < 0:
            msg = f"weight version {version} is negative, which marks tokens that were not sampled; use 0 or more"
            raise InvalidRequest(msg)
        self._loop.weight_version = version
        self._scheduler.start_namespace()

    def _refuse_if_updating(self) -> None:
        if self.is_updating:
            msg = f"a weight update that began after version {self.weight_version} has not ended, so the weights may mix two versions, and the tokens would belong to no policy; publish a complete version first"
            raise EngineStateError(msg)

    def _refuse_if_released(self) -> None:
        if self.is_released:
            msg = "the engine has released the memory of its KV cache and cannot generate; call resume_memory_occupation() first"
            raise EngineStateError(msg)
