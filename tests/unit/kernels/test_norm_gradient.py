"""The gradient of a norm's weight sums over all rows; its rounding must not depend on their number."""

import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import GRADIENT

from zerogap.kernels import qkv_rope, rms_norm, rope_tables

pytestmark = pytest.mark.usefixtures("path")
ROWS = 6000


def gradient(width: int, split: int) -> torch.Tensor:
    """Accumulated over ``split`` micro-batches, as the trainer does."""
    generator = torch.Generator().manual_seed(0)
    # A common sign, so that the sum grows and fp32 addition would lose its low bits.
    x = torch.rand(ROWS, width, generator=generator) + 0.5
    grad = torch.rand(ROWS, width, generator=generator) + 0.5
    weight = torch.ones(width, requires_grad=True)
    for rows, grads in zip(x.chunk(split), grad.chunk(split), strict=True):
        (rms_norm(rows, weight, 1e-6) * grads).sum().backward()
    assert weight.grad is not None
    return weight.grad


def test_it_does_not_depend_on_the_split_into_micro_batches():
    GRADIENT.check(gradient(64, 7), gradient(64, 1))


def test_it_is_that_of_float64():
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(ROWS, 64, generator=generator) + 0.5).double()
    grad = (torch.rand(ROWS, 64, generator=generator) + 0.5).double()
    expected = (grad * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).sum(0).float()
    GRADIENT.check(gradient(64, 1), expected)
    in_order = torch.zeros(64)
    for row in (grad * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()).float():
        in_order += row
    with planted_fault("fp32 addition, row after row"):
        GRADIENT.check(in_order, expected)


@pytest.mark.parametrize("split", [2, 5])
def test_head_norms_do_not_depend_on_the_split_either(split):
    generator = torch.Generator().manual_seed(1)
    qkv = torch.rand(2000, 8 * 32, generator=generator) + 0.5
    grad = torch.rand(2000, 4, 32, generator=generator) + 0.5

    def head_gradients(parts: int) -> tuple[torch.Tensor, ...]:
        q_norm, k_norm = (torch.ones(32, requires_grad=True) for _ in range(2))
        for rows, grads in zip(qkv.chunk(parts), grad.chunk(parts), strict=True):
            cos, sin = rope_tables(torch.zeros(16), torch.zeros(len(rows), dtype=torch.int64))
            q, k, _ = qkv_rope(
                rows, cos, sin, q_norm, k_norm, num_heads=4, num_kv_heads=2, eps=1e-6
            )
            ((q * grads).sum() + (k * grads[:, :2]).sum()).backward()
        assert q_norm.grad is not None
        assert k_norm.grad is not None
        return q_norm.grad, k_norm.grad

    for ours, whole in zip(head_gradients(split), head_gradients(1), strict=True):
        GRADIENT.check(ours, whole)
