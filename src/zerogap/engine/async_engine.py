"""An engine on a thread of its own, which serves many callers at once: a run, environments, evaluation, a server.

The thread alone touches the engine. Callers send it jobs through a queue: requests, or a command such as a pause or a
weight update. Before each step it does all jobs that have arrived, in order; while there is nothing to compute it
sleeps on the queue. Requests that an asyncio loop submits before it next waits arrive as one job, so that they are
scheduled together. Tokens do not depend on when a request arrives.
"""

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from zerogap.engine.engine import Engine
from zerogap.engine.stats import EngineStats
from zerogap.errors import EngineStateError
from zerogap.types import Capability, CompletionUpdate, GenerateOutput, GenerateRequest
from zerogap.weights import Place, WeightDigest

Result = TypeVar("Result")


class AsyncEngine:
    """A ``rollout.Generator`` and ``weights.WeightSink`` over an ``Engine``. A context manager; closing it ends the thread.

    Callers wait while the engine is paused, while its memory is released, and between ``begin_weight_update`` and
    ``end_weight_update``.
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
        """End the thread after its present step; whoever still waits gets an EngineStateError. May be called twice."""
        self._end()

    async def submit(
        self, request: GenerateRequest, *, with_progress: bool = False
    ) -> AsyncGenerator[CompletionUpdate, None]:
        """As ``rollout.Generator.submit``.

        Raises:
            InvalidRequest, RequestTooLong: the request cannot be served.
            EngineStateError: the engine is closed.
            Exception: what a step raised. Every caller gets it; the engine goes on with later requests.
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
        """End a request; its caller gets what was drawn so far. Unknown rids are ignored."""
        await asyncio.wrap_future(self.call(lambda engine: engine.abort_request(rid)))

    def call(self, command: Callable[[Engine], Result]) -> Future[Result]:
        """Do something with the engine between two of its steps. The result is waited for by another thread than its own."""
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
        """Send a request with all others that its loop submits before it next waits."""
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
    """Who waits for a request. Created in its loop; ``num_open`` is the loop's, the rest the thread's."""

    def __init__(self, request: GenerateRequest, *, is_watching: bool) -> None:
        self.request, self.is_watching = request, is_watching
        self.loop = asyncio.get_running_loop()
        self.updates: asyncio.Queue[CompletionUpdate | BaseException] = asyncio.Queue()
        self.num_open = request.sampling_params.n
        """Completions whose end it has not seen."""
        self.is_gone = False
        """It has stopped waiting, perhaps before its request was opened."""
        self.num_told = [0] * self.num_open
        """Tokens of each completion that it knows."""


class _Worker:
    """What the thread does and holds. It does not know the ``AsyncEngine``, whose end ends it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._callers: dict[str, _Caller] = {}
        self._door = threading.Lock()
        """Held to put a job into the queue, and to close it: no job is left in a closed one."""
        self._is_closed = False

    def send(self, job: Callable[[], Result]) -> Future[Result]:
        """Have the thread do a job; from any thread."""
        future: Future[Result] = Future()
        with self._door:
            if not self._is_closed:
                self._jobs.put((job, future))
                return future
        future.set_exception(_closed())
        return future

    def stop(self) -> None:
        """Have the thread end; from any thread."""
        self._jobs.put(None)

    def run(self, num_threads: int) -> None:
        """The thread: all jobs that are there, then a step, until it is stopped."""
        # A new thread has a number of its own for OpenMP, and gradients are on.
        torch.set_num_threads(num_threads)
        try:
            with torch.no_grad():
                while self._do_jobs():
                    self._step()
        finally:
            self._close()

    def open(self, callers: list[_Caller]) -> None:
        """Queue the requests of those that still wait."""
        for caller in callers:
            if caller.is_gone:
                continue
            try:
                self.engine.add_request(caller.request, is_watched=caller.is_watching)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a request is its caller's
                _deliver([(caller, error)])
            else:
                self._callers[caller.request.rid] = caller

    def forget(self, caller: _Caller) -> None:
        """Nobody waits for the request any more: end it."""
        rid = caller.request.rid
        if self._callers.get(rid) is caller:
            del self._callers[rid]
            self.engine.abort_request(rid)

    def _do_jobs(self) -> bool:
        """Do what has arrived; wait for more while a step would do nothing. False once the thread is to end."""
        while not self._jobs.empty() or self.engine.is_stalled:
            taken = self._jobs.get()
            if taken is None:
                return False
            job, future = taken
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - it is raised where the result is waited for
                future.set_exception(error)
            # Before the next job, which may open a request of the same rid.
            self._hand_out(self.engine.take_outputs())
        return True

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
        """Ends to whom they belong, and what has grown to those that watch."""
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
        """Tell everybody who waits, or comes later, that the engine does nothing more."""
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
    return EngineStateError("the engine is closed and generates no more; build a new one")


def _deliver(news: list[tuple[_Caller, CompletionUpdate | BaseException]]) -> None:
    """Wake each loop once, with all that is for its callers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Caller, Any]]] = {}
    for caller, update in news:
        by_loop.setdefault(caller.loop, []).append((caller, update))
    for loop, found in by_loop.items():
        # A loop that is closed has no callers that wait.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_hand_over, found)


def _hand_over(news: list[tuple[_Caller, Any]]) -> None:
    for caller, update in news:
        caller.updates.put_nowait(update)
