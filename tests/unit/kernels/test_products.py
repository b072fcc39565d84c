"""Whose products run is a choice of the code around them, and recordings notice it."""

import pytest
import torch
from helpers.kernel_paths import values_and_gradients
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.kernels import chosen_products, linear, product_choice, products
from zerogap.kernels.linear import row_gemm
from zerogap.kernels.native import native


def test_the_choice_holds_inside_its_block_and_is_seen_by_recordings():
    outside = product_choice()
    with products("blas"):
        assert chosen_products() == "blas"
        assert product_choice() != outside
        with products("exact"):
            assert product_choice() == outside
        assert chosen_products() == "blas"
    assert (chosen_products(), product_choice()) == ("exact", outside)


def test_the_choice_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), products("blas"):
        raise ZeroDivisionError
    assert chosen_products() == "exact"


@pytest.mark.parametrize("num_rows", [1, 5, 16])
def test_the_blas_gets_the_rows_as_they_are_forward_and_backward(num_rows, monkeypatch):
    x, weight = torch.randn(num_rows, 40), torch.randn(13, 40)
    bias, residual = torch.randn(13), torch.randn(num_rows, 13)
    monkeypatch.setattr(row_gemm, "tile", 64)  # what the probe settled is of no interest here
    monkeypatch.setattr(native, "multiplies", pytest.fail)
    with products("blas"):
        values, gradients = values_and_gradients(
            lambda x, w, b, r: linear(x, w, b, residual_TO=r), [x, weight, bias, residual]
        )
    EXACT.check(values[0], torch.mm(x, weight.t()) + bias + residual)
    grad = gradients[3]
    EXACT.check(gradients[0], torch.mm(grad, weight))
    EXACT.check(gradients[1], torch.mm(grad.t(), x))
    with planted_fault("another weight"):
        EXACT.check(gradients[0], torch.mm(grad, 1.01 * weight))
