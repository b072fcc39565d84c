"""Our own matrix product: right to fp32, and a row has the same bits beside any others."""

import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT, FP32_SAME_OP

from zerogap.kernels.native import native

pytestmark = pytest.mark.skipif(
    native.library is None or not native.has_gemm, reason="no C++ product on this processor"
)
SHAPES = [(576, 960), (1536, 576), (16, 32), (17, 33), (300, 31), (1, 1), (70, 45), (256, 100)]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(x), len(weight)), torch.nan)
    native.gemm(x, weight, out)
    return out


def operands(num_in: int, num_out: int, num_rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_in * 7 + num_out)
    x = torch.randn(num_rows, num_in, generator=generator)
    return x, torch.randn(num_out, num_in, generator=generator) * num_in**-0.5


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
def test_it_is_the_product(num_in, num_out):
    x, weight = operands(num_in, num_out)
    expected = (x.double() @ weight.double().t()).float()
    FP32_SAME_OP.check(product(x, weight), expected)
    with planted_fault("the last input is left out"):
        FP32_SAME_OP.check(product(x[:, :-1].contiguous(), weight[:, :-1].contiguous()), expected)


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
@pytest.mark.parametrize("num_rows", [8, 16, 24, 56])
def test_a_row_has_the_same_bits_beside_any_others_and_at_any_place(num_in, num_out, num_rows):
    x, weight = operands(num_in, num_out)
    whole = product(x, weight)
    EXACT.check(product(x[:num_rows].contiguous(), weight), whole[:num_rows])
    EXACT.check(product(x[-num_rows:].contiguous(), weight), whole[-num_rows:])
    turned = product(x.roll(3, 0).contiguous(), weight)
    EXACT.check(turned.roll(-3, 0), whole)


def test_a_column_has_the_same_bits_in_any_slice_of_the_weight():
    x, weight = operands(96, 100)
    EXACT.check(product(x, weight[40:90].contiguous()), product(x, weight)[:, 40:90].contiguous())


def test_threads_change_no_bit():
    x, weight = operands(200, 300)
    before, threads = product(x, weight), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        EXACT.check(product(x, weight), before)
    finally:
        torch.set_num_threads(threads)


def test_nan_and_infinity_pass_through_and_touch_their_own_row_only():
    x, weight = operands(64, 40)
    expected = product(x, weight)
    x[5, 7], x[20, 3] = torch.nan, torch.inf
    out = product(x, weight)
    assert out[5].isnan().all()
    assert not out[20].isfinite().any()
    others = [r for r in range(64) if r not in (5, 20)]
    EXACT.check(out[others], expected[others])
