"""The engine under its owner's control: add, step, abort, pause, continue, flush, release, another weight version.

Everything here but ``step`` happens between two steps, in the caller's thread. Not thread-safe: one
thread calls, and callbacks run in it. ``AsyncEngine`` is that thread, and serves many callers.
"""

from collections.abc import Collection
from typing import Literal

from zerogap.engine.loop import EngineLoop
from zerogap.engine.outputs import build_update
from zerogap.engine.prefix_cache import PrefixCache
from zerogap.engine.requests import Limits
from zerogap.engine.runner import Runner
from zerogap.engine.scheduler import Scheduler
from zerogap.engine.stats import EngineStats
from zerogap.errors import EngineError, EngineStateError, InvalidRequest
from zerogap.types import CompletionUpdate, GenerateOutput, GenerateRequest

PauseMode = Literal["abort", "retract", "in_place"]
_STRENGTH = {None: 0, "in_place": 1, "retract": 2, "abort": 3}
"""A second pause may ask for more than the first, never for less."""
MEMORY_TAGS = ("kv_cache",)
"""What can be released. Weights cannot: they are the trainer's own."""


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
        """Version that tokens drawn from now on are marked with."""
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
        """Whether a weight update has begun and not ended: the weights may be of two versions."""
        return self._is_updating

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs or waits."""
        return self._loop.is_idle

    @property
    def is_stalled(self) -> bool:
        """Whether a step would do nothing: idle, paused, released, or in the middle of a weight update."""
        return self.is_idle or self.is_paused or self.is_released or self.is_updating

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
        """Queue a request; its outputs come out of ``step``.

        Args:
            request: what to continue.
            is_watched: text is decoded as tokens are drawn, for ``updates``.

        Raises:
            InvalidRequest: parameters or ids without meaning here, or a rid that is still alive.
            RequestTooLong: it does not fit the model's context or the KV cache.
        """
        self._loop.check([request])
        opened = self._loop.open(request, is_owned=False)
        if is_watched:
            for sequence in opened.sequences:
                sequence.stop.follow_text()

    def updates(self, rid: str) -> list[CompletionUpdate]:
        """Those completions of a request that have drawn tokens and go on, as they are now."""
        opened = self._loop.open_requests.get(rid)
        alive = [s for s in opened.sequences if not s.is_finished and s.has_output] if opened else []  # fmt: skip
        return [build_update(sequence) for sequence in alive]

    def step(self) -> list[GenerateOutput]:
        """One forward pass, unless paused, released or idle. Returns the completions that ended since the last call.

        Raises:
            NumericsError: a log-prob was not finite. All requests are aborted and the cache is emptied.
            EngineStateError: there is something to compute, and a weight update has not ended.
        """
        if not (self.is_paused or self.is_released or self.is_idle):
            self._refuse_if_updating()
            self._loop.advance()
        return self.take_outputs()

    def take_outputs(self) -> list[GenerateOutput]:
        """The completions that ended since the last call, in a step or by an abort."""
        ready, self._loop.ready = self._loop.ready, []
        return ready

    def is_open(self, rid: str) -> bool:
        """Whether a completion of the request has not ended."""
        return rid in self._loop.open_requests

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> None:
        """End requests now; their callers get what was drawn so far. Unknown rids are ignored.

        Args:
            rid: exactly as in the request.
            abort_all: every request, instead.
        """
        message = "aborted by abort_request"
        if abort_all:
            self._loop.abort_all(message)
        elif rid in self._loop.open_requests:
            self._loop.abort(self._loop.open_requests[rid], message)

    def pause_generation(self, mode: PauseMode = "abort") -> None:
        """Steps do nothing until ``continue_generation``; nothing reads weights or writes KV meanwhile.

        A second pause may ask for more (``in_place``, then ``retract``, then ``abort``); asking for less
        changes nothing.

        Args:
            mode: ``abort`` ends all requests with partial outputs; ``retract`` takes running sequences off
                their pages, to be recomputed with the weights of then; ``in_place`` leaves them on
                their pages, so that they go on with keys and values of the weights of now.
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
        """End a pause; nothing happens without one.

        Raises:
            EngineStateError: memory is released.
        """
        self._refuse_if_released()
        self._pause = None

    def release_memory_occupation(self, tags: Collection[str] = MEMORY_TAGS) -> None:
        """Give the memory of the KV cache back until ``resume_memory_occupation``; cached prefixes are lost.

        Requests may be added meanwhile, and wait. What is released already stays so.

        Args:
            tags: of ``MEMORY_TAGS``.

        Raises:
            InvalidRequest: an unknown tag.
            EngineStateError: sequences hold keys and values: neither idle nor paused with ``retract`` or ``abort``.
        """
        _check_tags(tags)
        if not tags or self.is_released:
            return
        if not (self.is_idle or self._pause in ("retract", "abort")):
            state = f"paused ({self._pause})" if self.is_paused else "not paused"
            msg = f"release_memory_occupation({list(tags)}) of an engine with {self.num_running} running and {self.num_waiting} waiting sequences that is {state}: their keys and values would be lost; finish or abort them, or call pause_generation('retract') first"
            raise EngineStateError(msg)
        self._scheduler.start_namespace()
        self._runner.clear()
        self._is_released = True

    def resume_memory_occupation(self, tags: Collection[str] = MEMORY_TAGS) -> None:
        """Take released memory again, with an empty cache. What is held already stays as it is.

        Raises:
            InvalidRequest: an unknown tag.
        """
        _check_tags(tags)
        if tags and self.is_released:
            # The pages' memory comes when they are written.
            self._is_released = False

    def flush_cache(self) -> bool:
        """Empty the prefix cache. False, and nothing is done, while a sequence holds KV pages."""
        if self._scheduler.running:
            return False
        self._scheduler.start_namespace()
        return True

    def set_weight_version(self, version: int) -> None:
        """The model's weights are now another version's; takes effect with the next step.

        Cached prefixes of the old weights cannot be found any more. Running sequences go on with the keys
        and values they have (pause with ``retract`` to recompute them), and share them with nobody; those
        that had drawn nothing yet start again. Tokens drawn from here on carry the new version.

        Raises:
            InvalidRequest: a version below 0.
            EngineStateError: a weight update has not ended; call ``end_weight_update`` when the weights are complete.
        """
        self._refuse_if_updating()
        self._use_version(version)

    def begin_weight_update(self) -> None:
        """The weights are about to change: nothing is generated or scored until ``end_weight_update``.

        Requests may be added meanwhile, and wait. A second call begins again, after an update that failed half way.
        """
        self._is_updating = True

    def end_weight_update(self, version: int) -> None:
        """The weights are completely those of ``version``; otherwise as ``set_weight_version``.

        Raises:
            InvalidRequest: a version below 0; the update has not ended.
            EngineStateError: none has begun.
        """
        if not self.is_updating:
            msg = f"end_weight_update({version}) without a begin_weight_update: tokens may have been drawn while the weights changed; call begin_weight_update() before the first tensor is written"
            raise EngineStateError(msg)
        self._use_version(version)
        self._is_updating = False

    def check_integrity(self) -> None:
        """Every page free, cached or held by a known holder; every open sequence waits or runs.

        Raises:
            EngineError: lists what is wrong; the engine has a defect.
        """
        found = self._loop.problems()
        if found:
            msg = f"the engine's state contradicts itself: {'; '.join(found[:10])}. This is a defect of the engine: report it, and go on with a new engine"
            raise EngineError(msg)

    def _refuse_if_stopped(self) -> None:
        """For calls that wait for tokens."""
        if self.is_paused:
            msg = f"the engine is paused ({self._pause}) and would block forever; call continue_generation() first"
            raise EngineStateError(msg)
        self._refuse_if_released()
        self._refuse_if_updating()

    def _use_version(self, version: int) -> None:
        if version < 0:
            msg = f"weight version {version} is negative, which marks tokens that were not sampled; use 0 or more"
            raise InvalidRequest(msg)
        self._loop.weight_version = version
        self._scheduler.start_namespace()

    def _refuse_if_updating(self) -> None:
        if self.is_updating:
            msg = f"a weight update that began after version {self.weight_version} has not ended, so the weights may be of two versions, and no policy would have drawn these tokens; publish a complete version first"
            raise EngineStateError(msg)

    def _refuse_if_released(self) -> None:
        if self.is_released:
            msg = f"the engine has released the memory of {', '.join(MEMORY_TAGS)} and cannot generate; call resume_memory_occupation() first"
            raise EngineStateError(msg)


def _check_tags(tags: Collection[str]) -> None:
    # A text would be taken for a collection of letters.
    unknown = [tags] if isinstance(tags, str) else sorted(set(tags) - set(MEMORY_TAGS))
    if unknown:
        msg = f"memory tags = {tags!r}: {unknown} is unknown; give a list with any of {list(MEMORY_TAGS)}"
        raise InvalidRequest(msg)
