"""An asyncio event loop for a caller that has none."""

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """As ``asyncio.run``, but works also where a loop already runs, as in a notebook, and never sleeps through a signal."""
    results = []

    async def main() -> None:
        # Not returned: asyncio.run formats its task's result as text, which takes a second for a batch.
        with _woken_by_signals():
            results.append(await work)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(main())
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, main()).result()
    return results[0]


@contextlib.contextmanager
def _woken_by_signals() -> Generator[None]:
    """Wake the running loop when a signal comes.

    Python runs a signal's handler between two bytecodes of the main thread. A signal that another thread takes, or that comes
    just before the loop goes to sleep, would wait until something else wakes the loop: Ctrl-C would do nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread runs handlers.
        yield
        return
    loop = asyncio.get_running_loop()
    woken, waking = socket.socketpair()
    with woken, waking:
        woken.setblocking(False)
        waking.setblocking(False)
        loop.add_reader(woken, woken.recv, 4096)
        before = signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(woken)
