"""Rewards computed in processes of their own, each with a deadline that is kept.

A function that hangs, exhausts memory or crashes the interpreter costs its own sample its reward and
nothing else: the process is ended, the sample is a failed verifier, a new process takes over. The
deadline starts when a process takes the completion up, so that waiting in line is never a timeout.

Processes are plain children that import the function by its path. They are started with the interpreter
and not by fork or multiprocessing's spawn: a fork copies torch's threads in an unusable state, and a
spawn runs the user's main script a second time.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from zerogap.errors import RewardFailed
from zerogap.rollout.reward_process import RewardProcess
from zerogap.rollout.rewards import RewardRequest, RewardResult


class WorkerRewards:
    """A pool of reward processes. Owns them: ``close`` ends exactly those, as does the end of this object."""

    def __init__(
        self,
        function: str,
        *,
        params: Mapping[str, Any] | None = None,
        timeout_s: float,
        num_workers: int,
    ) -> None:
        """Start the first process, to see that the function can be imported.

        Args:
            function: ``module:function``, importable with this process's ``sys.path``.
            params: keyword arguments of every call; picklable.
            timeout_s: longest time for one completion.
            num_workers: most processes at once; more than the first start when there is work for them.

        Raises:
            ConfigError: the function cannot be imported.
        """
        self._start = (function, dict(params or {}))
        self._timeout_s = timeout_s
        self._num_workers = num_workers
        self._workers: list[RewardProcess] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers)
        self._add_worker().wait_until_ready()

    def compute(
        self,
        requests: Sequence[RewardRequest],
        *,
        on_done: Callable[[], None] | None = None,
    ) -> list[RewardResult | RewardFailed]:
        """See ``Rewards``. A completion that ends or outlives its process gives a RewardFailed."""
        results: dict[int, RewardResult | RewardFailed] = {}
        waiting = deque(enumerate(requests))
        try:
            while len(results) < len(requests):
                self._assign(waiting)
                for place, result in self._finished():
                    results[place] = result
                    if on_done is not None:
                        on_done()
        except BaseException:
            # Interrupted: no process may be left working on a place of this call.
            _end_all(self._workers)
            raise
        return [results[place] for place in range(len(requests))]

    def close(self) -> None:
        """End the processes."""
        self._finalizer()

    def _add_worker(self) -> RewardProcess:
        if not self._finalizer.alive:
            msg = "these rewards were closed; build new ones"
            raise RewardFailed(msg)
        worker = RewardProcess(*self._start)
        self._workers.append(worker)
        return worker

    def _assign(self, waiting: deque[tuple[int, RewardRequest]]) -> None:
        missing = min(self._num_workers, len(self._busy()) + len(waiting)) - len(self._workers)
        started = [self._add_worker() for _ in range(missing)]
        for worker in started:
            worker.wait_until_ready()
        for worker in self._workers:
            if waiting and worker.place is None:
                worker.give(*waiting.popleft(), deadline=time.monotonic() + self._timeout_s)

    def _busy(self) -> list[RewardProcess]:
        return [worker for worker in self._workers if worker.place is not None]

    def _finished(self) -> list[tuple[int, RewardResult | RewardFailed]]:
        """Results of workers that have answered, died or run out of time; waits for the first of them."""
        busy = self._busy()
        patience = min(worker.deadline for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], timeout=max(patience, 0))
        now = time.monotonic()
        done = [w for w in busy if w.connection in ready or w.deadline <= now]
        results = [worker.take_result(self._timeout_s) for worker in done]
        self._workers[:] = [worker for worker in self._workers if not worker.is_dead]
        return results


def _end_all(workers: list[RewardProcess]) -> None:
    for worker in workers:
        worker.end()
    workers.clear()
