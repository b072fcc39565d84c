import pytest
import torch
from helpers.kernel_paths import doubled, values_and_gradients
from helpers.planted_fault import assert_notices, planted_fault, scaled
from helpers.tolerance import EXACT, FP32_MODEL_GRADIENT, FP32_SAME_OP
from jaxtyping import TypeCheckError

from zerogap.kernels import Compute, gemm_choice, linear
from zerogap.kernels.native import NativeKernels, native

ROW_COUNTS = (1, 3, 7, 8, 23, 64, 130)


def formula(x, weight, *bias):
    return torch.nn.functional.linear(x, weight, *bias)


@pytest.mark.parametrize("num_rows", [0, 1, 7, 8, 20])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_and_its_gradients_are_torchs(num_rows, has_bias):
    inputs = [torch.randn(num_rows, 20), torch.randn(12, 20)]
    inputs += [torch.randn(12)] * has_bias
    values, gradients = values_and_gradients(linear, inputs)
    expected, expected_gradients = values_and_gradients(formula, doubled(inputs))
    FP32_SAME_OP.check(values, expected)
    FP32_MODEL_GRADIENT.check(gradients, expected_gradients)
    if num_rows:
        with planted_fault("one weight"):
            FP32_SAME_OP.check(linear(inputs[0], scaled(inputs[1]), *inputs[2:]), expected[0])
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            with planted_fault("one gradient"):
                FP32_MODEL_GRADIENT.check(scaled(ours), theirs)


def test_a_gradient_that_nobody_wants_is_not_computed():
    x, weight = torch.randn(3, 8), torch.randn(4, 8)
    bias = torch.randn(4, requires_grad=True)
    (linear(x, weight, bias) ** 2).sum().backward()
    assert x.grad is None
    assert weight.grad is None
    assert bias.grad is not None


@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize("shape", [(64, 1), (100, 257)])
def test_a_row_has_its_bits_among_any_number_of_rows(monkeypatch, tile, shape):
    monkeypatch.setattr(native, "tile", tile)
    num_in, num_out = shape
    weight, bias = torch.randn(num_out, num_in), torch.randn(num_out)
    x = torch.randn(max(ROW_COUNTS), num_in)
    whole = linear(x, weight, bias)
    for num_rows in ROW_COUNTS:
        EXACT.check(linear(x[:num_rows], weight, bias), whole[:num_rows])
        EXACT.check(linear(x[-num_rows:], weight, bias), whole[-num_rows:])
        with torch.no_grad():
            EXACT.check(linear(x[:num_rows], weight, bias), whole[:num_rows])


def test_the_comparison_of_rows_notices_a_row_that_knows_its_batch():
    x, weight = torch.randn(16, 64), torch.randn(48, 64)

    def leaking(x):
        return linear(x + 1e-6 * x.mean(0), weight)

    assert_notices("batch mean", lambda: EXACT.check(leaking(x[:3]), leaking(x)[:3]))


def test_rows_of_another_batch_that_are_nan_do_not_touch_a_row():
    x, weight = torch.randn(9, 64), torch.randn(48, 64)
    clean = linear(x, weight)
    x[4] = torch.nan
    dirty = linear(x, weight)
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    EXACT.check(dirty[others], clean[others])
    assert dirty[4].isnan().all()


@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize("num_rows", [0, 3, 8, 19])
def test_the_blas_path_multiplies_any_number_of_rows(monkeypatch, tile, num_rows):
    monkeypatch.setattr(NativeKernels, "has_gemm", False)
    monkeypatch.setattr(native, "tile", tile)
    x, weight = torch.randn(num_rows, 20), torch.randn(12, 20)
    residual = torch.randn(num_rows, 12)
    FP32_SAME_OP.check(linear(x, weight), formula(x, weight))
    EXACT.check(linear(x, weight, residual_TO=residual), residual + linear(x, weight))


def test_captured_graphs_see_the_choice():
    assert gemm_choice(Compute()) == gemm_choice(Compute())
    assert gemm_choice(Compute(gemm="blas")) != gemm_choice(Compute())


@pytest.mark.parametrize("num_rows", [1, 5, 16])
def test_the_blas_gets_the_rows_as_they_are_forward_and_backward(num_rows, monkeypatch):
    x, weight = torch.randn(num_rows, 40), torch.randn(13, 40)
    bias, residual = torch.randn(13), torch.randn(num_rows, 13)
    monkeypatch.setattr(native, "tile", 64)  # a tile must not matter here
    compute = Compute(gemm="blas")
    values, gradients = values_and_gradients(
        lambda x, w, b, r: linear(x, w, b, residual_TO=r, compute=compute),
        [x, weight, bias, residual],
    )
    EXACT.check(values[0], torch.mm(x, weight.t()) + bias + residual)
    grad = gradients[3]
    EXACT.check(gradients[0], torch.mm(grad, weight))
    EXACT.check(gradients[1], torch.mm(grad.t(), x))
    with planted_fault("another weight"):
        EXACT.check(gradients[0], torch.mm(grad, 1.01 * weight))


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_residual_is_added_as_a_sum_of_its_own_would_be(has_bias):
    x, weight, residual = torch.randn(9, 20), torch.randn(12, 20), torch.randn(9, 12)
    bias = torch.randn(12) if has_bias else None
    inputs = [t.requires_grad_() for t in (x, weight, residual)]
    fused = linear(x, weight, bias, residual_TO=residual)
    apart = residual + linear(x, weight, bias)
    EXACT.check(fused, apart)
    grad = torch.randn(9, 12)
    for ours, theirs in zip(
        torch.autograd.grad(fused, inputs, grad),
        torch.autograd.grad(apart, inputs, grad),
        strict=True,
    ):
        EXACT.check(ours, theirs)
    with planted_fault("the residual is left out"):
        EXACT.check(linear(x, weight, bias), apart)


def test_annotations_of_this_room_are_checked_while_tests_run():
    with pytest.raises(TypeCheckError):
        linear("x", torch.ones(2, 2))
