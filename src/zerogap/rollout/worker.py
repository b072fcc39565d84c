"""A process that computes rewards for ``WorkerRewards``: ``python -m zerogap.rollout.worker FD PARENT``.

Talks over one inherited socket. The first message in is ``(sys.path, "module:function", params)``; the answer is None
once the function is imported, else why it cannot be. Then each ``RewardRequest`` gets a ``RewardResult`` or
``RewardFailed``. The process ends when the socket closes or the parent is gone.

The function runs in the main thread, so that it may use signals.
"""

import functools
import importlib
import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from zerogap.rollout.rewards import RewardFunction, reward_or_failure

_PARENT_CHECK_S = 1.0


def main() -> None:
    """Serve until the other side closes the socket."""
    descriptor, parent = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with Connection(descriptor) as connection:
        try:
            _serve(connection)
        except (EOFError, OSError):
            return


def _serve(connection: Connection) -> None:
    path, function_path, params = connection.recv()
    sys.path[:] = path
    try:
        function = load_function(function_path)
    except Exception as error:  # noqa: BLE001 - importing a user's module may raise anything; the parent reports it
        connection.send(f"{type(error).__name__}: {error}")
        return
    connection.send(None)
    bound = functools.partial(function, **params)
    while True:
        connection.send(reward_or_failure(bound, connection.recv()))


def load_function(path: str) -> RewardFunction:
    """The function that ``module:function`` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, even if its main thread is stuck."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
