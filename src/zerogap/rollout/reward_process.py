"""One process that computes rewards, seen from the run that owns it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Pipe
from typing import Any

from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout.rewards import RewardRequest, RewardResult

_START_TIMEOUT_S = 120.0
"""Importing a reward function may load large libraries on a busy machine; longer is a hang."""

_NOTHING = object()
"""What a process says that has ended."""


class RewardProcess:
    """One process and the completion it works on."""

    def __init__(self, function: str, params: dict[str, Any]) -> None:
        self.connection, theirs = Pipe()
        self._function = function
        self.place: int | None = None
        self.deadline = 0.0
        self.is_dead = False
        command = [
            sys.executable,
            "-m",
            "zerogap.rollout.worker",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        # A session of its own: its own children end with it, and Ctrl-C reaches only the run, which closes us.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self._send(([*sys.path, os.getcwd()], function, params))

    def wait_until_ready(self) -> None:
        """Block until the function is imported.

        Raises:
            ConfigError: it cannot be.
        """
        problem = f"the process did not answer within {_START_TIMEOUT_S} s"
        if self.connection.poll(_START_TIMEOUT_S):
            problem = self._receive()
        if problem is _NOTHING:
            problem = "the process ended while importing it"
        if problem is not None:
            self.end()
            msg = f"reward function {self._function}: it cannot be used in a worker process: {problem}; name it module:function, importable from the working directory"
            raise ConfigError(msg)

    def give(self, place: int, request: RewardRequest, *, deadline: float) -> None:
        """Start on a completion."""
        self.place, self.deadline = place, deadline
        self._send(request)

    def take_result(self, timeout_s: float) -> tuple[int, RewardResult | RewardFailed]:
        """The place and its answer; if there is none, why, and the process is ended."""
        place, self.place = self.place or 0, None
        if not self.connection.poll():
            self.end()
            return place, RewardFailed(f"the reward function took longer than {timeout_s} s")
        result = self._receive()
        if result is _NOTHING:
            self.end()
            return place, RewardFailed(
                "the reward function ended its process (out of memory, or a crash)"
            )
        return place, result

    def end(self) -> None:
        """End this process and its children at once: it keeps nothing that could be lost."""
        self.is_dead = True
        self.connection.close()
        if self._process.returncode is None:
            # Its id, which is also its group's, cannot be another's before we have waited for it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, message: object) -> None:
        # A dead process is noticed where its answer is read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(message)

    def _receive(self) -> Any:  # noqa: ANN401 - whatever the other process sent
        try:
            return self.connection.recv()
        except (EOFError, ConnectionResetError):
            return _NOTHING
