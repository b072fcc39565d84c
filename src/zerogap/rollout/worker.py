"""A process that computes rewards for ``WorkerRewards``: ``python -m zerogap.rollout.worker FD PARENT``.

Talks over one inherited socket. The first message in is ``(sys.path, RewardSource)``; the answer is None once the function
is imported and can be called, else why not. Then each list of ``RewardRequest`` of one prompt gets a list of
``RewardResult`` or ``RewardFailed``. The process ends when the socket closes or the parent is gone.

The function runs in the main thread, so that it may use signals.
"""

import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from zerogap.errors import ConfigError
from zerogap.rollout.reward_source import RewardSource

_PARENT_CHECK_S = 1.0
_HOW_TO_NAME = "name it as module:function, importable from the working directory"


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
    path, source = connection.recv()
    assert isinstance(source, RewardSource)
    sys.path[:] = path
    try:
        rewards = source.load()
    except ConfigError as error:
        connection.send(str(error))
        return
    except Exception as error:  # noqa: BLE001 - importing a user's module may raise anything; the parent reports it
        connection.send(f"{type(error).__name__}: {error}; {_HOW_TO_NAME}")
        return
    connection.send(None)
    while True:
        connection.send(rewards(connection.recv()))


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, even if its main thread is stuck."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
