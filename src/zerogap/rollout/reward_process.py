"""One process that computes rewards, as the run that owns it sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from multiprocessing.connection import Pipe
from typing import Any

from zerogap.errors import ConfigError, RewardFailed
from zerogap.rollout.reward_conventions import Convention
from zerogap.rollout.reward_source import RewardSource
from zerogap.rollout.rewards import RewardRequest, RewardResult

_START_TIMEOUT_S = 120.0
"""Importing a reward function may load large libraries on a busy machine; anything longer is a hang."""

_BOOT = "import sys; sys.path[:] = eval(sys.argv.pop(1)); from zerogap.rollout.worker import main; main()"
"""Sets the search path before anything else is imported. A process started with -m would look into its working directory
first, where a statistics.py of the user's takes the place of Python's."""

_NOTHING = object()
"""Stands for the answer of a process that has ended."""


class RewardProcess:
    """One process and the pipe to it. Only one thread at a time may use it; ``end`` works from any thread."""

    def __init__(self, source: RewardSource) -> None:
        self._connection, theirs = Pipe()
        self._source = source
        self.is_dead = False
        self.is_late = False
        """Whether it was ended because an answer took too long."""
        self._ending = threading.Lock()
        command = [
            sys.executable,
            "-P",
            "-c",
            _BOOT,
            repr(_search_path()),
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        # A session of its own: its children end with it, and Ctrl-C reaches only the run, which ends this process.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self._send(source)

    def wait_until_ready(self) -> Convention:
        """Block until the function is imported, and return how it is called.

        Raises:
            ConfigError: the function cannot be imported, or not be called with what it would get.
        """
        problem = f"the process did not answer within {_START_TIMEOUT_S} s; import less, or what answers sooner"
        if self._connection.poll(_START_TIMEOUT_S):
            problem = self._receive()
        if isinstance(problem, Convention):
            return problem
        if problem is _NOTHING:
            problem = (
                "the process ended while importing it; import it with Python by hand to see why"
            )
        self.end()
        msg = (
            f"reward function {self._source.function} cannot be used in a worker process: {problem}"
        )
        raise ConfigError(msg)

    def answer(
        self, requests: Sequence[RewardRequest], *, timeout_s: float
    ) -> list[RewardResult | RewardFailed]:
        """The rewards of completions of one prompt, or why there are none. Ends the process if it does not answer in time."""
        self._send(requests)
        if not self._connection.poll(timeout_s):
            self.is_late = True
            self.end()
            why = f"the reward function took longer than {timeout_s} s"
            return [RewardFailed(why)] * len(requests)
        results = self._receive()
        if results is _NOTHING:
            self.end()
            why = "the reward function ended its process (out of memory, or a crash)"
            return [RewardFailed(why)] * len(requests)
        return results

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


def _search_path() -> list[str]:
    """Where the process looks for modules: Python's own first, the working directory last.

    So a user's file hides no module of Python's, of ours or of a library that either needs, whatever its name is.
    """
    here = os.getcwd()
    own = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    own |= {f"{folder}/lib-dynload" for folder in own}
    path = [
        entry for entry in sys.path if entry and os.path.realpath(entry) != os.path.realpath(here)
    ]
    return [*filter(own.__contains__, path), *(p for p in path if p not in own), here]
