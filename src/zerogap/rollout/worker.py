"""A process that computes rewards for ``WorkerRewards``; ``reward_process`` starts it with the arguments FD PARENT.

Talks over one inherited socket. The first message in is a ``RewardSource``; the answer is its ``Convention`` once the
function is imported and can be called, else why not, as text. Then each list of ``RewardRequest`` of one prompt gets a
list of ``RewardResult`` or ``RewardFailed``. The process ends when the socket closes or the parent is gone.

The function runs in the main thread, so that it may use signals.
"""

import os
import sys
import threading
import time
from multiprocessing.connection import Connection

from zerogap.errors import ConfigError
from zerogap.rollout.reward_checks import described
from zerogap.rollout.reward_source import HOW_TO_NAME, RewardSource

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
    source = connection.recv()
    assert isinstance(source, RewardSource)
    try:
        rewards = source.load()
    except ConfigError as error:
        connection.send(str(error))
        return
    except BaseException as error:  # noqa: BLE001 - importing a user's module may raise anything, SystemExit too; the parent reports it
        connection.send(f"{described(error)}; {HOW_TO_NAME}")
        return
    connection.send(rewards.convention)
    while True:
        connection.send(rewards(connection.recv()))


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, even if its main thread is stuck."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)
