"""Rounding to bf16: bit patterns on both backends, and every kernel that rounds its result."""

import numpy as np
import pytest
import torch
from helpers.kernel_paths import BF16, PATHS, running_on, values_and_gradients
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.kernels import (
    linear,
    norm_linear,
    qkv_rope,
    rms_norm,
    rope_tables,
    round_bf16,
    round_bf16_,
    swiglu,
    swiglu_linear,
)

SPECIAL = {
    0x3F800000: 0x3F800000,  # 1
    0x3F808000: 0x3F800000,  # a tie: down to even
    0x3F818000: 0x3F820000,  # a tie: up to even
    0x3F808001: 0x3F810000,  # just above a tie
    0x3F817FFF: 0x3F810000,  # just below one
    0x80000000: 0x80000000,  # -0
    0x00008000: 0x00000000,  # a denormal tie, down to 0
    0x00018000: 0x00020000,
    0x7F7FFFFF: 0x7F800000,  # the largest float is nearer to infinity
    0xFF800000: 0xFF800000,  # -infinity
    0x7F800001: 0x7FC00000,  # a NaN whose bits would round to infinity
    0x7FFFFFFF: 0x7FFF0000,  # a NaN whose bits would overflow
    0xFFC00001: 0xFFC00000,  # a NaN's sign is kept
}


def floats(bits) -> torch.Tensor:
    return torch.from_numpy(np.array(bits, np.uint32).view(np.float32).copy())


def bits_of(x: torch.Tensor) -> np.ndarray:
    return x.detach().numpy().view(np.uint32)


@pytest.mark.parametrize("path", PATHS)
def test_ties_go_to_even_and_nan_and_infinity_stay(path):
    with running_on(path):
        got = bits_of(round_bf16(floats(list(SPECIAL))))
    assert [hex(b) for b in got] == [hex(b) for b in SPECIAL.values()]


def test_both_paths_agree_on_a_million_bit_patterns_and_with_torch_where_no_nan_is():
    x = floats(np.random.default_rng(0).integers(0, 2**32, 1_000_003, np.uint32))
    with running_on("torch"):
        theirs = round_bf16(x)
    with running_on("cpu"):
        ours = round_bf16(x)
    assert np.array_equal(bits_of(ours), bits_of(theirs))
    numbers = ~x.isnan()
    EXACT.check(ours[numbers], x[numbers].bfloat16().float())
    with planted_fault("cut off instead of rounded"):
        cut = floats(bits_of(x) & np.uint32(0xFFFF0000))
        EXACT.check(cut[numbers], ours[numbers])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(0,), (1,), (15,), (17, 3), (40, 1000), (3, 5, 7)])
def test_any_shape_in_place_and_not(path, shape):
    x = torch.randn(shape)
    with running_on(path):
        before = x.clone()
        rounded = round_bf16(x)
        EXACT.check(x, before)
        EXACT.check(rounded, x.bfloat16().float())
        EXACT.check(round_bf16(rounded), rounded)
        assert round_bf16_(x) is x
        EXACT.check(x, rounded)
        turned = torch.randn(5, 3).t()
        EXACT.check(round_bf16(turned), turned.bfloat16().float())
        EXACT.check(round_bf16_(turned), turned.bfloat16().float())


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_passes_straight_through(path):
    with running_on(path):
        x = torch.randn(4, 9, requires_grad=True)
        grad = torch.randn(4, 9)
        round_bf16(x).backward(grad)
        EXACT.check(x.grad, grad)


WIDTH, OUT = 37, 21


def inputs_and_kernels():
    """Name to (kernel with rounding, the same kernel and then rounding, inputs)."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    x, gate_up, weight, norm = (
        normal(11, WIDTH), normal(11, 2 * WIDTH), normal(OUT, WIDTH), normal(WIDTH),
    )  # fmt: skip
    bias, residual = normal(OUT), normal(11, OUT)
    cos, sin = rope_tables(torch.rand(8, generator=generator), torch.arange(11))
    heads = {"num_heads": 3, "num_kv_heads": 1, "eps": 1e-5}

    def rope(qkv, q, k, **extra):
        return qkv_rope(qkv, cos, sin, q, k, **heads, **extra)

    def rounded(function):
        return lambda *a: [round_bf16(y) for y in as_list(function(*a))]

    return {
        "rms_norm": (
            lambda x, n: rms_norm(x, n, 1e-5, compute=BF16),
            rounded(lambda x, n: rms_norm(x, n, 1e-5)), [x, norm],
        ),
        "swiglu": (lambda g: swiglu(g, compute=BF16), rounded(swiglu), [gate_up]),
        "linear": (
            lambda x, w, b, r: linear(x, w, b, residual_TO=r, compute=BF16),
            rounded(lambda x, w, b, r: linear(round_bf16(x), w, b, residual_TO=r)),
            [x, weight, bias, residual],
        ),
        "norm_linear": (
            lambda x, n, w, b: norm_linear(x, n, w, b, eps=1e-5, compute=BF16),
            rounded(lambda x, n, w, b: linear(round_bf16(rms_norm(x, n, 1e-5)), w, b)),
            [x, norm, weight, bias],
        ),
        "swiglu_linear": (
            lambda g, w, r: swiglu_linear(g, w, residual_TO=r, compute=BF16),
            rounded(lambda g, w, r: linear(round_bf16(swiglu(g)), w, residual_TO=r)),
            [gate_up, weight, residual],
        ),
        "qkv_rope": (
            lambda *a: rope(*a, compute=BF16), rounded(rope),
            [normal(11, 5 * 16), normal(16), normal(16)],
        ),
        "qkv_rope without norms": (
            lambda x: rope(x, None, None, compute=BF16),
            rounded(lambda x: rope(x, None, None)), [normal(11, 5 * 16)],
        ),
    }  # fmt: skip


def as_list(outputs):
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


KERNELS = inputs_and_kernels()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_in_bf16_is_the_kernel_and_then_rounding(path, name):
    kernel, parts, inputs = KERNELS[name]
    with running_on(path):
        ours, expected = values_and_gradients(kernel, inputs), values_and_gradients(parts, inputs)
        EXACT.check(ours, expected)
        with torch.no_grad():
            EXACT.check(as_list(kernel(*inputs)), ours[0])
        EXACT.check([round_bf16(y) for y in ours[0]], ours[0])
        with planted_fault("the first output is not rounded"):
            EXACT.check(ours[0][0] + 2**-12, expected[0][0])


@pytest.mark.parametrize("num_rows", [1, 8, 9, 130])
def test_gemms_of_few_and_of_many_rows_round_alike(num_rows):
    x, weight = torch.randn(num_rows, 64), torch.randn(70, 64)
    with running_on("cpu"):
        EXACT.check(linear(x, weight, compute=BF16), round_bf16(linear(round_bf16(x), weight)))
