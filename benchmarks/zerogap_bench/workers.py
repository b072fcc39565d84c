"""Runs each side of a comparison in its own process, which waits while the others run.

A side is an object in a new process; ``call`` runs one of its methods there. So sides can take turns without being loaded
again, and the peak memory of the process belongs to one side.
"""

import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self

from zerogap.errors import BenchmarkError


class Side(Protocol):
    """A running side; a context manager that ends its process."""

    def __enter__(self) -> Self:
        """Return the side itself."""
        ...

    def __exit__(self, *exception: object) -> None:
        """End the process."""
        ...

    def call(self, method: str, **arguments: Any) -> Any:
        """Run a method in its process and return the result.

        Raises:
            BenchmarkError: the method raised (the message holds the traceback), or the process died.
        """
        ...


class Worker:
    """The object ``build(**options)`` in a new process of this interpreter."""

    def __init__(self, name: str, build: str, *, threads: int | None, **options: Any) -> None:
        """Start the process and wait until it has built the object.

        Args:
            name: for messages.
            build: ``module:class``, imported only in the process.
            threads: of torch; None: torch's default.
            options: arguments of the class; plain values, because they are sent to the process.
        """
        self._name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, build, threads, options), name=name, daemon=True
        )
        self._process.start()
        theirs.close()
        try:
            self._receive()
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def call(self, method: str, **arguments: Any) -> Any:
        """See ``Side``."""
        self._connection.send((method, arguments))
        return self._receive()

    def _end(self) -> None:
        # It may be in the middle of a long run, and nothing in it needs to be saved.
        self._connection.close()
        self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:
        try:
            is_ok, result = self._connection.recv()
        except EOFError:
            self._process.join()
            msg = f"the process of {self._name} ended with exit code {self._process.exitcode} (-9 usually means out of memory; use smaller --shapes, or fewer --peers)"
            raise BenchmarkError(msg) from None
        if not is_ok:
            msg = f"{self._name} failed:\n{result}"
            raise BenchmarkError(msg)
        return result


def _serve(
    connection: Connection, build: str, threads: int | None, options: dict[str, Any]
) -> None:
    # Ctrl-C is for the main process, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Output of libraries must not mix with the tables on standard output.
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    served = _reply(connection, lambda: _resolve(build)(**options), keep=True)
    while served is not None:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        _reply(connection, lambda m=method, a=arguments: getattr(served, m)(**a))


def _resolve(build: str) -> Callable[..., object]:
    module, _, name = build.partition(":")
    return getattr(importlib.import_module(module), name)


def _reply(connection: Connection, compute: Callable[[], Any], *, keep: bool = False) -> Any:
    try:
        result = compute()
    except Exception:  # noqa: BLE001 - the main process raises it again
        connection.send((False, traceback.format_exc()))
        return None
    connection.send((True, None if keep else result))
    return result
