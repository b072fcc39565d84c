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
from helpers.kernel_paths import running_on, values_and_gradients
from helpers.planted_fault import planted_fault
from helpers.sampling_rows import rows_for
from helpers.tolerance import EXACT

from zerogap.kernels import (
    VOCAB_CHUNK,
    Head,
    embedding,
    linear,
    log_probs,
    norm_linear,
    packed_attention,
    qkv_rope,
    rms_norm,
    rope_tables,
    round_bf16,
    sample_tokens,
    swiglu,
    swiglu_linear,
)

ROWS, WIDTH, OUT = 203, 52, 149
"""Sizes that give many pieces of work, and a short last one."""


@pytest.fixture(autouse=True)
def _native():
    with running_on("cpu"):
        yield


@pytest.fixture(autouse=True)
def _same_number_of_threads_afterwards():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _kernels():
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    x, gate_up, norm, weight, bias = (
        normal(ROWS, WIDTH), normal(ROWS, 2 * WIDTH), normal(WIDTH), normal(OUT, WIDTH), normal(OUT)
    )  # fmt: skip
    inv_freq, positions = (
        torch.rand(13, generator=generator),
        torch.randint(4096, (ROWS,), generator=generator),
    )
    cos, sin = rope_tables(inv_freq, positions)
    heads = {"num_heads": 3, "num_kv_heads": 1, "eps": 1e-5}
    vocab = VOCAB_CHUNK + 77
    head, ids = normal(vocab, WIDTH), torch.randint(vocab, (ROWS,), generator=generator)
    temperature = 0.3 + torch.rand(ROWS, generator=generator)
    uniform = torch.rand(ROWS, dtype=torch.float64, generator=generator)
    packed = packed_tree([(None, 0, 150), (0, 90, 40), (0, 90, 33), (1, 120, 20)])
    return {
        "rms_norm": (lambda x, norm: rms_norm(x, norm, 1e-5), [x, norm]),
        "swiglu": (swiglu, [gate_up]),
        "linear": (linear, [x, weight, bias]),
        "linear of few rows": (linear, [x[:5], weight, bias]),
        "linear of wide rows": (linear, [normal(200, 300), normal(90, 300)]),
        "norm_linear": (
            lambda x, norm, weight: norm_linear(x, norm, weight, bias, eps=1e-5),
            [x, norm, weight],
        ),
        "swiglu_linear": (swiglu_linear, [gate_up, weight]),
        "round_bf16": (round_bf16, [normal(999, 113)]),
        "rope_tables": (lambda f: rope_tables(f, positions), [inv_freq]),
        "qkv_rope": (
            lambda qkv, q_norm, k_norm: qkv_rope(qkv, cos, sin, q_norm, k_norm, **heads),
            [normal(ROWS, 5 * 26), normal(26), normal(26)],
        ),
        "embedding": (lambda table: embedding(ids % 40, table), [head]),
        "log_probs": (
            lambda x, head: log_probs(x, Head(head, vocab), ids, temperature),
            [x, head],
        ),
        "sampler": (
            lambda x: sample_tokens(x, Head(head, vocab), rows_for(uniform)),
            [x],
        ),
        "attention": (
            lambda q, k, v: packed_attention(q, k, v, packed.layout, scale=0.2),
            random_qkv(packed.num_rows, 4, 2, 32),
        ),
    }


KERNELS = _kernels()
DIFFERENTIABLE = {name for name in KERNELS if name not in ("round_bf16", "rope_tables", "sampler")}


def compute(name):
    """Outputs, and gradients where there are any."""
    function, inputs = KERNELS[name]
    if name not in DIFFERENTIABLE:
        return function(*inputs)
    return values_and_gradients(function, inputs)


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
    x = torch.randn(ROWS, 64)

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
@pytest.mark.parametrize("threads", [1, 3])
def test_a_caller_gets_one_helper_less_than_torch_has_threads(threads):
    done = subprocess.run(
        [sys.executable, "-c", _THREADS_OF_A_PROCESS.format(threads=threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == threads - 1
