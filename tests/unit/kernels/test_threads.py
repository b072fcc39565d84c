"""Free threads take pieces of a kernel's work, several callers share the threads, and no bit depends on either."""

import os
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers.attention_cases import packed_tree, random_qkv
from helpers.every_kernel import KernelCase, every_kernel
from helpers.kernel_paths import running_on
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.kernels import linear, packed_attention, round_bf16


@pytest.fixture(autouse=True)
def _native():
    with running_on("cpu"):
        yield


PACKED = packed_tree([(None, 0, 150), (0, 90, 40), (0, 90, 33), (1, 120, 20)])
# Many pieces of work, and a short last one.
KERNELS = every_kernel(203, num_out=149) | {
    "linear of few rows": KernelCase(linear, [torch.randn(5, 52)], [torch.randn(149, 52)]),
    "linear of wide rows": KernelCase(linear, [torch.randn(200, 300)], [torch.randn(90, 300)]),
    "round_bf16 of much": KernelCase(round_bf16, [torch.randn(999, 113)]),
    "attention": KernelCase(
        lambda *qkv: packed_attention(*qkv, PACKED.layout, scale=0.2),
        random_qkv(PACKED.num_rows, 4, 2, 32),
    ),
}


def compute(name):
    return KERNELS[name].everything()


def compute_all():
    return {name: compute(name) for name in KERNELS}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_the_same_bits_on_any_number_of_threads(name):
    torch.set_num_threads(2)
    expected = compute(name)
    for num_threads in (1, 3, 4, 7):
        torch.set_num_threads(num_threads)
        EXACT.check(compute(name), expected)


def test_the_comparison_notices_a_sum_a_thread():
    x = torch.randn(203, 64)

    def summed(num_threads):
        return sum(part.sum(0) for part in x.chunk(num_threads))

    with planted_fault("two sums instead of one"):
        EXACT.check(summed(2), summed(1))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_callers_at_the_same_time_get_the_bits_of_one(num_threads):
    torch.set_num_threads(num_threads)
    expected = compute_all()

    def call(_):
        torch.set_num_threads(num_threads)
        return compute_all()

    with ThreadPoolExecutor(max_workers=4) as callers:
        for found in callers.map(call, range(8)):
            EXACT.check(found, expected)


def test_more_callers_than_places_for_help_get_the_bits_of_one():
    torch.set_num_threads(2)
    expected = compute("linear")

    def call(_):
        torch.set_num_threads(2)
        return [compute("linear") for _ in range(10)]

    with ThreadPoolExecutor(max_workers=24) as callers:
        for found in callers.map(call, range(24)):
            EXACT.check(found, [expected] * 10)


def test_a_forked_process_computes_the_same_bits():
    torch.set_num_threads(3)
    expected = compute("linear"), compute("attention")
    with warnings.catch_warnings():
        # Python warns about a fork beside threads; this test checks that the child works without them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(120)  # ends a child that waits for a thread that it does not have
        try:
            EXACT.check((compute("linear"), compute("attention")), expected)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    EXACT.check((compute("linear"), compute("attention")), expected)


class _Interruption(BaseException):
    """Like a KeyboardInterrupt: no library handles it as an error of its own."""


def compute_until_a_signal(after_s):
    signal.setitimer(signal.ITIMER_REAL, after_s)
    while True:
        compute("linear")


def test_an_interrupted_caller_leaves_nothing_behind():
    torch.set_num_threads(2)
    expected = compute("linear")

    def interrupt(*_):
        raise _Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for turn in range(20):
            with pytest.raises(_Interruption):
                compute_until_a_signal(0.001 + 0.0005 * turn)
    finally:
        signal.signal(signal.SIGALRM, before)
    EXACT.check(compute("linear"), expected)


_THREADS_OF_A_PROCESS = """
import os, threading, torch
from zerogap.kernels import rms_norm
x = torch.randn(64, 64)
torch.set_num_threads({threads})
def call():
    before = len(os.listdir("/proc/self/task"))
    rms_norm(x, torch.ones(64), 1e-5)
    print(len(os.listdir("/proc/self/task")) - before)
threading.Thread(target=call).start()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_caller_gets_one_helper_less_than_torch_has_threads(threads):
    done = subprocess.run(
        [sys.executable, "-c", _THREADS_OF_A_PROCESS.format(threads=threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == threads - 1
