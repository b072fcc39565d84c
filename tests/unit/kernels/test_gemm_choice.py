"""The GEMM kernels are an argument of the call, for its backward too, and captured graphs depend on the choice."""

import pytest
import torch
from helpers.kernel_paths import values_and_gradients
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.kernels import Compute, gemm_choice, linear
from zerogap.kernels.native import native


def test_recordings_see_the_choice():
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
