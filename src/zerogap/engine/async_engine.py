"""An engine on a thread of its own, which serves many callers at once: a run, environments, evaluation, a server.

Only the thread touches the engine. Callers send it jobs through a queue: requests, or a command such as a pause or a
weight update. Before each step the thread does all jobs that have arrived, in order; while there is nothing to compute,
it sleeps on the queue. All requests that an asyncio loop submits in one turn arrive as one job, so they are scheduled
together. Tokens do not depend on when a request arrives.
"""

import asyncio
import contextlib
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from zerogap.engine.engine import Engine
from zerogap.engine.stats import EngineStats
from zerogap.errors import EngineStateError
from zerogap.obs import monotonic_s, stamp
from zerogap.types import Capability, CompletionUpdate, GenerateOutput, GenerateRequest
from zerogap.weights import Place, WeightDigest

Result = TypeVar("Result")

_Job = tuple[Callable[[], Any], Future[Any]]

_WARN_AFTER_S = 30.0
"""Requests that wait longer for a stopped engine are worth a line in the log."""

_log = logging.getLogger(__name__)


class AsyncEngine:
    """A ``rollout.Generator`` and ``weights.WeightSink`` over an ``Engine``. A context manager: leaving it closes it.

    Callers wait while the engine is paused, while its memory is released, and between ``begin_weight_update`` and
    ``end_weight_update``. If they wait for long, a warning in the log names the missing call.
    """

    capabilities = frozenset(Capability)

    def __init__(self, engine: Engine) -> None:
        """Start the thread; it alone uses ``engine`` from now on."""
        self._unsent: dict[asyncio.AbstractEventLoop, list[_Caller]] = {}
        self._worker = _Worker(engine)
        thread = threading.Thread(
            target=self._worker.run,
            args=(torch.get_num_threads(),),
            name="zerogap-engine",
            daemon=True,
        )
        thread.start()
        self._end = weakref.finalize(self, _end, self._worker, thread)

    def __enter__(self) -> "AsyncEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the thread after its present step; waiting callers get an EngineStateError. May be called twice."""
        self._end()

    async def submit(
        self, request: GenerateRequest, *, with_progress: bool = False
    ) -> AsyncGenerator[CompletionUpdate, None]:
        """As ``rollout.Generator.submit``.

        Raises:
            InvalidRequest, RequestTooLong: the request cannot be served.
            EngineStateError: the engine is closed.
            Exception: a step raised it. Every waiting caller gets it; the engine goes on with later requests.
        """
        caller = _Caller(request, is_watching=with_progress)
        self._send_together(caller)
        try:
            while caller.num_open:
                update = await caller.updates.get()
                if isinstance(update, BaseException):
                    raise update
                caller.num_open -= update.output is not None
                yield update
        finally:
            if caller.num_open:
                caller.is_gone = True
                self._worker.send(lambda: self._worker.forget(caller))

    async def abort(self, rid: str) -> None:
        """End a request; its caller gets the tokens drawn so far. Unknown rids are ignored."""
        await asyncio.wrap_future(self.call(lambda engine: engine.abort_request(rid)))

    def call(self, command: Callable[[Engine], Result]) -> Future[Result]:
        """Run a command on the engine between two steps. Do not wait for the result in the engine's own thread."""
        engine = self._worker.engine
        return self._worker.send(lambda: command(engine))

    @property
    def stats(self) -> EngineStats:
        """Counters up to now."""
        return self.call(lambda engine: engine.stats).result()

    def release_memory_occupation(self) -> None:
        """As ``EngineCore.release_memory_occupation``."""
        self.call(lambda engine: engine.release_memory_occupation()).result()

    def resume_memory_occupation(self) -> None:
        """As ``EngineCore.resume_memory_occupation``."""
        self.call(lambda engine: engine.resume_memory_occupation()).result()

    def begin_weight_update(self) -> None:
        """As ``EngineCore.begin_weight_update``."""
        self.call(lambda engine: engine.begin_weight_update()).result()

    def write_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As ``Engine.write_weights``."""
        self.call(lambda engine: engine.write_weights(weights)).result()

    def digest(self) -> WeightDigest:
        """As ``Engine.digest``."""
        return self.call(lambda engine: engine.digest()).result()

    def places(self) -> Mapping[str, Place]:
        """As ``Engine.places``."""
        return self.call(lambda engine: engine.places()).result()

    def end_weight_update(self, version: int) -> None:
        """As ``EngineCore.end_weight_update``."""
        self.call(lambda engine: engine.end_weight_update(version)).result()

    def _send_together(self, caller: "_Caller") -> None:
        """Send a request together with all others that its loop submits in the same turn."""
        if caller.loop not in self._unsent:
            self._unsent[caller.loop] = []
            caller.loop.call_soon(self._send_unsent, caller.loop)
        self._unsent[caller.loop].append(caller)

    def _send_unsent(self, loop: asyncio.AbstractEventLoop) -> None:
        callers = self._unsent.pop(loop)

        def tell(sent: Future[None]) -> None:
            if error := sent.exception():
                _deliver([(caller, error) for caller in callers])

        self._worker.send(lambda: self._worker.open(callers)).add_done_callback(tell)


class _Caller:
    """The caller that waits for a request. Created in its loop, which owns ``num_open``; the thread owns the rest."""

    def __init__(self, request: GenerateRequest, *, is_watching: bool) -> None:
        self.request, self.is_watching = request, is_watching
        self.loop = asyncio.get_running_loop()
        self.updates: asyncio.Queue[CompletionUpdate | BaseException] = asyncio.Queue()
        self.num_open = request.sampling_params.n
        """Completions whose end the caller has not seen."""
        self.is_gone = False
        """Whether the caller has stopped waiting, perhaps before its request was opened."""
        self.num_told = [0] * self.num_open
        """Tokens of each completion that the caller has been given."""


class _Worker:
    """What the thread does and owns. It holds no reference to the ``AsyncEngine``, so that one can be collected."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._callers: dict[str, _Caller] = {}
        self._waiting_since: tuple[float, str] | None = None
        """Clock and stamp when the thread found requests in a stopped engine; None while it is idle or computes."""
        self._has_warned = False
        self._door = threading.Lock()
        """Held to add a job to the queue and to close the queue, so that no job is left in a closed one."""
        self._is_closed = False

    def send(self, job: Callable[[], Result]) -> Future[Result]:
        """Have the thread do a job. Callable from any thread."""
        future: Future[Result] = Future()
        with self._door:
            if not self._is_closed:
                self._jobs.put((job, future))
                return future
        future.set_exception(_closed())
        return future

    def stop(self) -> None:
        """Have the thread end. Callable from any thread."""
        self._jobs.put(None)

    def run(self, num_threads: int) -> None:
        """The thread's loop: do all waiting jobs, then a step, until it is stopped."""
        # A new thread starts with its own OpenMP thread count and with gradients on.
        torch.set_num_threads(num_threads)
        try:
            with torch.no_grad():
                while self._do_jobs():
                    self._step()
        finally:
            self._close()

    def open(self, callers: list[_Caller]) -> None:
        """Queue the requests of the callers that still wait."""
        for caller in callers:
            if caller.is_gone:
                continue
            try:
                self.engine.add_request(caller.request, is_watched=caller.is_watching)
            except Exception as error:  # noqa: BLE001 - the caller of a bad request gets the error
                _deliver([(caller, error)])
            else:
                self._callers[caller.request.rid] = caller

    def forget(self, caller: _Caller) -> None:
        """End a request whose caller has left."""
        rid = caller.request.rid
        if self._callers.get(rid) is caller:
            del self._callers[rid]
            self.engine.abort_request(rid)

    def _do_jobs(self) -> bool:
        """Do the jobs that have arrived; wait for more while a step would do nothing. False if the thread must end."""
        while not self._jobs.empty() or self.engine.is_stalled:
            taken = self._next_job()
            if taken is None:
                return False
            job, future = taken
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - the future raises it in its caller
                future.set_exception(error)
            # Before the next job, which may open a request with the same rid.
            self._hand_out(self.engine.take_outputs())
        self._waiting_since = None
        return True

    def _next_job(self) -> _Job | None:
        """Wait for a job. Warn once if requests have waited long meanwhile, since a forgotten call hangs them."""
        if self.engine.is_idle:
            self._waiting_since = None
            return self._jobs.get()
        if self._waiting_since is None:
            self._waiting_since, self._has_warned = (monotonic_s(), stamp()), False
        began_s, began = self._waiting_since
        if not self._has_warned:
            with contextlib.suppress(Empty):
                return self._jobs.get(timeout=max(0.0, began_s + _WARN_AFTER_S - monotonic_s()))
            calls = " and ".join(f"{call}()" for call in self.engine.missing_calls)
            text = "the engine has computed nothing since %s and waits for %s; open requests: %d"
            _log.warning(text, began, calls, len(self._callers))
            self._has_warned = True
        return self._jobs.get()

    def _step(self) -> None:
        try:
            outputs = self.engine.step()
        except Exception as error:  # noqa: BLE001 - it is raised in every caller
            callers, self._callers = self._callers, {}
            _deliver([(caller, error) for caller in callers.values()])
            self.engine.abort_request(abort_all=True)
            outputs = self.engine.take_outputs()
        self._hand_out(outputs)

    def _hand_out(self, outputs: list[GenerateOutput]) -> None:
        """Give outputs to their callers, and progress to the callers that watch."""
        news: list[tuple[_Caller, CompletionUpdate | BaseException]] = []
        for caller in self._callers.values():
            if caller.is_watching:
                for update in self.engine.updates(caller.request.rid):
                    if len(update.output_ids) > caller.num_told[update.index]:
                        caller.num_told[update.index] = len(update.output_ids)
                        news.append((caller, update))
        for output in outputs:
            if output.rid in self._callers:
                news.append((self._callers[output.rid], CompletionUpdate.ended(output)))
        for output in outputs:
            if not self.engine.is_open(output.rid):
                self._callers.pop(output.rid, None)
        _deliver(news)

    def _close(self) -> None:
        """Give present and later callers the error that the engine is closed."""
        with self._door:
            self._is_closed = True
        _deliver([(caller, _closed()) for caller in self._callers.values()])
        while not self._jobs.empty():
            taken = self._jobs.get()
            if taken is not None:
                taken[1].set_exception(_closed())


def _end(worker: _Worker, thread: threading.Thread) -> None:
    worker.stop()
    # The last reference to an AsyncEngine may be dropped by its own thread.
    if thread is not threading.current_thread():
        thread.join()


def _closed() -> EngineStateError:
    return EngineStateError("the engine is closed and generates nothing more; build a new one")


def _deliver(news: list[tuple[_Caller, CompletionUpdate | BaseException]]) -> None:
    """Wake each loop once, with all news for its callers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Caller, Any]]] = {}
    for caller, update in news:
        by_loop.setdefault(caller.loop, []).append((caller, update))
    for loop, found in by_loop.items():
        # A closed loop has no waiting callers.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_hand_over, found)


def _hand_over(news: list[tuple[_Caller, Any]]) -> None:
    for caller, update in news:
        caller.updates.put_nowait(update)
