"""Our own GEMM: correct to fp32, and batch-invariant."""

import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT, FP32_SAME_OP

from zerogap.kernels import PLAIN
from zerogap.kernels.native import native

pytestmark = pytest.mark.skipif(
    native.library is None or not native.has_gemm, reason="no C++ GEMM on this processor"
)
ROW_COUNTS = (1, 2, 3, 7, 8, 9, 24, 63)
SHAPES = [(576, 960), (1536, 576), (16, 32), (17, 33), (300, 31), (1, 1), (70, 45), (256, 100)]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(x), len(weight)), torch.nan)
    return native.product(x, weight, out_MO=out, compute=PLAIN)


def to_input_of(grad: torch.Tensor, weight: torch.Tensor, onto=None) -> torch.Tensor:
    return native.input_gradient(grad, weight, onto, compute=PLAIN)


def to_weight_of(grad: torch.Tensor, x: torch.Tensor, onto=None) -> torch.Tensor:
    onto = torch.zeros(grad.shape[1], x.shape[1]) if onto is None else onto
    native.add_weight_gradient_(onto, grad, x, compute=PLAIN)
    return onto


def operands(num_in: int, num_out: int, num_rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_in * 7 + num_out)
    x = torch.randn(num_rows, num_in, generator=generator)
    return x, torch.randn(num_out, num_in, generator=generator) * num_in**-0.5


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
def test_it_is_the_matrix_product(num_in, num_out):
    x, weight = operands(num_in, num_out)
    expected = (x.double() @ weight.double().t()).float()
    FP32_SAME_OP.check(product(x, weight), expected)
    with planted_fault("the last input is left out"):
        FP32_SAME_OP.check(product(x[:, :-1].contiguous(), weight[:, :-1].contiguous()), expected)


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
@pytest.mark.parametrize("num_rows", ROW_COUNTS)
def test_a_row_has_the_same_bits_beside_any_others_and_at_any_place(num_in, num_out, num_rows):
    x, weight = operands(num_in, num_out)
    whole = product(x, weight)
    EXACT.check(product(x[:num_rows].contiguous(), weight), whole[:num_rows])
    EXACT.check(product(x[-num_rows:].contiguous(), weight), whole[-num_rows:])
    turned = product(x.roll(3, 0).contiguous(), weight)
    EXACT.check(turned.roll(-3, 0), whole)


@pytest.mark.parametrize(("num_in", "num_out"), SHAPES)
@pytest.mark.parametrize("num_rows", [1, 5, 64, 130, 300])
def test_the_gemms_of_the_backward_are_right_and_can_add(num_in, num_out, num_rows):
    x, weight = operands(num_in, num_out, num_rows)
    grad = torch.randn(num_rows, num_out, generator=torch.Generator().manual_seed(1))
    to_input, to_weight = to_input_of(grad, weight), to_weight_of(grad, x)
    for out, left, right in ((to_input, grad, weight), (to_weight, grad.t(), x)):
        scale = left.shape[1] ** 0.5
        expected = (left.double() @ right.double()).float() / scale
        FP32_SAME_OP.check(out / scale, expected)
        with planted_fault("the last term is left out"):
            FP32_SAME_OP.check(out / scale, (left[:, :-1] @ right[:-1]) / scale)
    start_input, start_weight = torch.randn_like(x), torch.randn_like(weight)
    onto_input = to_input_of(grad, weight, start_input.clone())
    onto_weight = to_weight_of(grad, x, start_weight.clone())
    EXACT.check(onto_input, start_input + to_input)
    EXACT.check(onto_weight, start_weight + to_weight)


def test_a_column_has_the_same_bits_in_any_slice_of_the_weight():
    x, weight = operands(96, 100)
    EXACT.check(product(x, weight[40:90].contiguous()), product(x, weight)[:, 40:90].contiguous())


def test_nan_and_infinity_pass_through_and_touch_their_own_row_only():
    x, weight = operands(64, 40)
    expected = product(x, weight)
    x[5, 7], x[20, 3] = torch.nan, torch.inf
    out = product(x, weight)
    assert out[5].isnan().all()
    assert not out[20].isfinite().any()
    others = [r for r in range(64) if r not in (5, 20)]
    EXACT.check(out[others], expected[others])


def test_no_columns_are_no_division_by_them():
    x, grad = torch.randn(64, 20), torch.randn(64, 12)
    assert product(x, torch.empty(0, 20)).shape == (64, 0)
    assert to_input_of(grad, torch.empty(12, 0)).shape == (64, 0)
    assert to_weight_of(grad, torch.empty(64, 0)).shape == (12, 0)


def test_no_rows_give_no_rows_and_a_gradient_of_zero():
    x, weight, grad = torch.empty(0, 20), torch.randn(12, 20), torch.empty(0, 12)
    assert product(x, weight).shape == (0, 12)
    EXACT.check(to_weight_of(grad, x), torch.zeros_like(weight))
    EXACT.check(to_weight_of(grad, x, torch.ones_like(weight)), torch.ones_like(weight))
