"""One process that computes rewards, as the run that owns it sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Pipe
from typing import Any

from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout.rewards import RewardRequest, RewardResult

_START_TIMEOUT_S = 120.0
"""Importing a reward function may load large libraries on a busy machine; anything longer is a hang."""

_NOTHING = object()
"""Stands for the answer of a process that has ended."""


class RewardProcess:
    """One process and the pipe to it. Only one thread at a time may use it; ``end`` works from any thread."""

    def __init__(self, function: str, params: dict[str, Any]) -> None:
        self._connection, theirs = Pipe()
        self._function = function
        self.is_dead = False
        self._ending = threading.Lock()
        command = [
            sys.executable,
            "-m",
            "zerogap.rollout.worker",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        # A session of its own: its children end with it, and Ctrl-C reaches only the run, which ends this process.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self._send(([*sys.path, os.getcwd()], function, params))

    def wait_until_ready(self) -> None:
        """Block until the function is imported.

        Raises:
            ConfigError: the function cannot be imported.
        """
        problem = f"the process did not answer within {_START_TIMEOUT_S} s"
        if self._connection.poll(_START_TIMEOUT_S):
            problem = self._receive()
        if problem is _NOTHING:
            problem = "the process ended while importing it"
        if problem is not None:
            self.end()
            msg = f"reward function {self._function} cannot be used in a worker process: {problem}; name it as module:function, importable from the working directory"
            raise ConfigError(msg)

    def answer(self, request: RewardRequest, *, timeout_s: float) -> RewardResult | RewardFailed:
        """The reward of a completion, or why there is none. Ends the process if it does not answer in time."""
        self._send(request)
        if not self._connection.poll(timeout_s):
            self.end()
            return RewardFailed(f"the reward function took longer than {timeout_s} s")
        result = self._receive()
        if result is _NOTHING:
            self.end()
            return RewardFailed("the reward function ended its process (out of memory, or a crash)")
        return result

    def end(self) -> None:
        """End this process and its children at once. A thread that waits for its answer gets a RewardFailed.

        The process has no state to lose.
        """
        self.is_dead = True
        with self._ending:
            if self._process.returncode is None:
                # The system cannot reuse the id, which is also the group's, before we wait for the process.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _send(self, message: object) -> None:
        # Reading the answer notices a dead process.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    def _receive(self) -> Any:  # noqa: ANN401 - the other process may send anything
        try:
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            return _NOTHING
