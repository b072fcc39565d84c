"""``run_async`` gives a result wherever it is called, and a signal ends its sleep."""

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from zerogap.rollout import run_async

LONG_S = 60.0


async def answer():
    await asyncio.sleep(0)
    return 42


async def in_a_notebook():
    return run_async(answer())


def test_it_returns_the_result_with_and_without_a_loop_and_in_any_thread():
    assert run_async(answer()) == 42
    assert asyncio.run(in_a_notebook()) == 42
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(run_async, answer()).result() == 42


async def fails():
    raise LookupError("gone")


def test_it_raises_what_the_work_raises():
    with pytest.raises(LookupError, match="gone"):
        run_async(fails())


@pytest.fixture
def _interruptible():
    # A shell's background job ignores SIGINT, and so would everything in it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_here():
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


@pytest.mark.usefixtures("_interruptible")
def test_a_signal_that_another_thread_takes_wakes_a_loop_that_sleeps():
    # The system may give a process's signal to any thread; Python's handler then waits for the main thread.
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    ended = []

    async def asleep():
        timer = threading.Timer(0.1, interrupt_here)
        timer.start()
        asyncio.get_running_loop().call_later(LONG_S, ended.append, "late")
        try:
            await asyncio.Event().wait()
        finally:
            timer.join()
            ended.append("cancelled")

    with pytest.raises(KeyboardInterrupt):
        run_async(asleep())
    assert ended == ["cancelled"]
    assert signal.set_wakeup_fd(wakeup) == wakeup
