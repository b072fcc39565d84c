import os
import signal
import threading

import pytest

from zerogap.run.interrupt import Interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_insists(number):
    told = []
    with Interrupt(lambda: told.append(1)) as interrupt:
        os.kill(os.getpid(), number)
        assert interrupt.is_requested
        assert told == [1]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda: None):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


def test_outside_the_main_thread_it_stays_silent():
    seen = []

    def work():
        with Interrupt(lambda: None) as interrupt:
            seen.append(interrupt.is_requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
