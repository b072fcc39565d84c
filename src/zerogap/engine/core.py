"""The engine under its owner's control: add, step, abort, pause, continue, flush, another weight version.

Everything here but ``step`` happens between two steps, in the caller's thread. Not thread-safe: one
thread calls, and callbacks run in it.
"""

from typing import Literal

from zerogap.engine.loop import EngineLoop
from zerogap.engine.prefix_cache import PrefixCache
from zerogap.engine.requests import Limits
from zerogap.engine.runner import Runner
from zerogap.engine.scheduler import Scheduler
from zerogap.engine.stats import EngineStats
from zerogap.errors import EngineError, EngineStateError, InvalidRequest
from zerogap.types import GenerateOutput, GenerateRequest

PauseMode = Literal["abort", "retract", "in_place"]
_STRENGTH = {None: 0, "in_place": 1, "retract": 2, "abort": 3}
"""A second pause may ask for more than the first, never for less."""


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
        self._loop = EngineLoop(
            runner, self._scheduler, limits, weight_version=weight_version, seed=seed
        )
        self._pause: PauseMode | None = None

    @property
    def weight_version(self) -> int:
        """Version that tokens drawn from now on are marked with."""
        return self._loop.weight_version

    @property
    def is_paused(self) -> bool:
        """Whether steps do nothing until ``continue_generation``."""
        return self._pause is not None

    @property
    def is_idle(self) -> bool:
        """Whether no sequence runs or waits."""
        return self._loop.is_idle

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

    def add_request(self, request: GenerateRequest) -> None:
        """Queue a request; its outputs come out of ``step``.

        Raises:
            InvalidRequest: parameters or ids without meaning here, or a rid that is still alive.
            RequestTooLong: it does not fit the model's context or the KV cache.
        """
        self._loop.check([request])
        self._loop.open(request, is_owned=False)

    def step(self) -> list[GenerateOutput]:
        """One forward pass, unless paused or idle. Returns the completions that ended since the last call.

        Raises:
            NumericsError: a log-prob was not finite. All requests are aborted and the cache is emptied.
        """
        if not self.is_paused:
            self._loop.advance()
        ready, self._loop.ready = self._loop.ready, []
        return ready

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
        """End a pause; nothing happens without one."""
        self._pause = None

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
        """
        if version < 0:
            msg = f"weight version {version} is negative, which marks tokens that were not sampled; use 0 or more"
            raise InvalidRequest(msg)
        self._loop.weight_version = version
        self._scheduler.start_namespace()

    def check_integrity(self) -> None:
        """Every page free, cached or held by a known holder; every open sequence waits or runs.

        Raises:
            EngineError: lists what is wrong; the engine has a defect.
        """
        found = self._loop.problems()
        if found:
            msg = f"the engine's state contradicts itself: {'; '.join(found[:10])}. This is a defect of the engine: report it, and go on with a new engine"
            raise EngineError(msg)

    def _refuse_if_paused(self) -> None:
        if self.is_paused:
            msg = f"the engine is paused ({self._pause}) and would wait for ever; call continue_generation() first"
            raise EngineStateError(msg)
