"""A side in another Python interpreter: a script that reads requests and writes replies as lines of JSON.

A request is ``{"method": ..., "arguments": {...}}``; a reply is ``{"result": ...}`` or ``{"error": "traceback"}``. The
process group is stopped between calls, because helper processes that poll (as vLLM's do) would slow the other sides down.
"""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from zerogap.errors import BenchmarkError

_END_S = 20.0
"""Time to exit before it is killed."""
_LOG_CHARACTERS = 3000


class ScriptSide:
    """The side that runs ``python script``."""

    def __init__(self, name: str, python: Path, script: Path) -> None:
        """Start the interpreter; nothing is loaded until the first call.

        Args:
            name: for messages.
            python: of the environment where the script's imports are installed.
            script: reads requests from standard input, and replies on the descriptor of its standard output.

        Raises:
            BenchmarkError: there is no such interpreter.
        """
        self._name = name
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        try:
            self._process = subprocess.Popen(
                [str(python), str(script)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
                # A separate process group can be stopped, and does not get the terminal's Ctrl-C.
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._log.close()
            msg = f"{name}: {python} cannot be run ({error}); give the python of the environment that has it"
            raise BenchmarkError(msg) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        # Kill the script if it is still running, and the processes that it left behind.
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            assert stream is not None
            stream.close()

    def call(self, method: str, **arguments: Any) -> Any:
        """See ``workers.Side``; arguments and result are JSON values."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
            reply = parse_reply(self._name, self._process.stdout.readline())
        except (BrokenPipeError, BenchmarkError) as error:
            msg = f"{error}\nend of its log:\n{self._last_words()}"
            raise BenchmarkError(msg) from error
        self._signal(signal.SIGSTOP)
        return reply

    def _last_words(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return self._log.read()[-_LOG_CHARACTERS:]

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # ended already; ``call`` notices when it waits for a reply


def parse_reply(name: str, line: str) -> Any:
    """The result in a reply.

    Args:
        name: of the side, for messages.
        line: the reply; empty if the process has ended.

    Raises:
        BenchmarkError: the line is not a reply, or reports an error.
    """
    if not line:
        msg = f"the process of {name} ended without a reply"
        raise BenchmarkError(msg)
    try:
        reply = json.loads(line)
    except json.JSONDecodeError as error:
        msg = f"{name} wrote {line[:200]!r}, which is not a reply: something in it prints to standard output, where only replies may go"
        raise BenchmarkError(msg) from error
    if not isinstance(reply, dict) or not reply.keys() & {"result", "error"}:
        msg = f"{name} replied {line[:200]!r}; a reply must have a result or an error"
        raise BenchmarkError(msg)
    if "error" in reply:
        msg = f"{name} failed:\n{reply['error']}"
        raise BenchmarkError(msg)
    return reply["result"]
