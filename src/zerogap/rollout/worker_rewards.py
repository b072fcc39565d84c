"""Rewards computed in processes of their own, with a deadline that always holds.

If a function hangs, exhausts memory or crashes the interpreter, only the samples of this call lose their reward: the
process is ended, their outcome is verifier_failed, and a new process takes over. A call has one completion, or those of
one group if the function takes groups. The deadline starts when a process begins with the call, so waiting in line is
never a timeout.

Processes are plain children that import the function by its path. The interpreter starts them, not fork or
multiprocessing's spawn: a fork copies torch's threads in an unusable state, and a spawn runs the user's main script
a second time.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zerogap.errors import RewardFailed
from zerogap.rollout.reward_conventions import VERL, Convention, Takes
from zerogap.rollout.reward_process import RewardProcess
from zerogap.rollout.reward_source import RewardSource
from zerogap.rollout.rewards import RewardRequest, RewardResult

_MAX_LATE = 8
"""Calls that may exceed the deadline before the first answer. If there is none then, every call hangs: to wait for each of a
step's hundreds would take hours."""


class WorkerRewards:
    """A pool of reward processes. Owns them: ``close`` ends exactly these, as does garbage collection of the pool."""

    def __init__(
        self,
        function: str,
        *,
        params: Mapping[str, Any] | None = None,
        takes: Takes | None = None,
        columns: Sequence[str] | None = None,
        answer_name: str | None = None,
        key: str | None = None,
        timeout_s: float,
        num_workers: int,
    ) -> None:
        """Start the first process, to check that the function can be imported and called.

        Args:
            function: ``module:function``, importable with this process's ``sys.path``.
            params: keyword arguments of every call; picklable.
            takes: whether one call gets a completion or a group; None: what its parameters say.
            columns: names of the fields that every row of the data has; None if they are not known.
            answer_name: the data's own name of the reference answer.
            key: of the user's section in the recipe, for ``describe``; None: the function is ours.
            timeout_s: longest time for one call.
            num_workers: most processes at once; all but the first start only when there is work for them.

        Raises:
            ConfigError: the function cannot be imported, or not be called with what it would get.
        """
        self._source = RewardSource(
            function=function,
            params=dict(params or {}),
            takes=takes,
            columns=None if columns is None else tuple(columns),
            answer_name=answer_name,
        )
        self._key, self._timeout_s = key, timeout_s
        self._num_answers = self._num_late = 0
        self._counting = threading.Lock()
        self._workers: list[RewardProcess] = []
        # Each busy process has a thread that waits for it.
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="zerogap-reward")
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._threads)
        first, self._convention = self._add_worker()
        self._idle = [first]

    async def reward(self, requests: Sequence[RewardRequest]) -> list[RewardResult | RewardFailed]:
        """See ``Rewards``. Requests whose call kills its process or exceeds the deadline get a RewardFailed."""
        if not self._finalizer.alive:
            msg = "these rewards are closed; build new ones"
            raise RewardFailed(msg)
        whole = [requests] if requests else []
        calls = whole if self._convention.takes == "group" else [[request] for request in requests]
        answers = await asyncio.gather(*map(self._call, calls))
        return [result for answer in answers for result in answer]

    async def _call(self, requests: Sequence[RewardRequest]) -> list[RewardResult | RewardFailed]:
        task = _Task(requests)
        answer = self._threads.submit(self._answer, task)
        try:
            return await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            task.cancel()
            raise

    def describe(self) -> list[str]:
        """See ``Rewards``."""
        if self._key is None:
            return []
        of = "a completion" if self._convention.takes == "completion" else "a prompt, with all of its completions"  # fmt: skip
        line = f"{self._key}: {self._source.function} has {self._convention}; one call for {of}, at most {self._timeout_s:g} s"
        known = {*(self._source.columns or ()), *self._source.params}
        if self._convention == VERL and "data_source" not in known:
            line += f'; data_source is "" where the data has no such field ({self._key}.params.data_source sets it)'
        return [line]

    def close(self) -> None:
        """End the processes."""
        self._finalizer()

    def _answer(self, task: _Task) -> list[RewardResult | RewardFailed]:
        if not self._num_answers and self._num_late >= _MAX_LATE:
            why = f"the reward function took longer than {self._timeout_s:g} s in each of its first {self._num_late} calls, so it was not called again"
            return [RewardFailed(why)] * task.size
        try:
            worker = self._idle.pop()
        except IndexError:
            worker, _ = self._add_worker()
        result = task.work(worker, timeout_s=self._timeout_s)
        with self._counting:
            self._num_late += worker.is_late
            self._num_answers += not worker.is_dead
        if worker.is_dead:
            self._workers.remove(worker)
        else:
            self._idle.append(worker)
        return result

    def _add_worker(self) -> tuple[RewardProcess, Convention]:
        worker = RewardProcess(self._source)
        self._workers.append(worker)
        return worker, worker.wait_until_ready()


class _Task:
    """The completions of one call and the process that works on them."""

    def __init__(self, requests: Sequence[RewardRequest]) -> None:
        self._requests = requests
        self._worker: RewardProcess | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Completions of the call."""
        return len(self._requests)

    def work(self, worker: RewardProcess, *, timeout_s: float) -> list[RewardResult | RewardFailed]:
        """Wait for the answer."""
        with self._lock:
            if self._is_cancelled:
                why = RewardFailed("the caller no longer waits for this reward")
                return [why] * len(self._requests)
            self._worker = worker
        result = worker.answer(self._requests, timeout_s=timeout_s)
        with self._lock:
            self._worker = None
        return result

    def cancel(self) -> None:
        """The caller no longer waits: end the process that works on it."""
        with self._lock:
            self._is_cancelled = True
            if self._worker is not None:
                self._worker.end()


def _end_all(workers: list[RewardProcess], threads: ThreadPoolExecutor) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in list(workers):
        worker.end()
