"""Gradients that are added to ``.grad`` where they are made: autograd's own, to the bit where a weight is used once."""

import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.kernels import (
    embedding,
    gradients_in_place,
    linear,
    log_probs,
    norm_linear,
    swiglu_linear,
)

IDS = torch.tensor([3, 1, 3, 0, 3, 7])


def loss_of(
    table: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Every product with a weight that this room has, the table used as embedding and as head."""
    x = embedding(IDS, table)
    hidden = swiglu_linear(norm_linear(x, norm, weight, eps=1e-5), down, residual_TO=x)
    log_prob, _ = log_probs(hidden, table, IDS.flip(0), torch.ones(6), vocab_limit=len(table))
    return (log_prob * torch.arange(1.0, 7.0)).sum()


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(9, 16), (16,), (64, 16), (16, 32)]
    return [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]


def accumulate(num_passes: int, *, in_place: bool) -> list[torch.Tensor]:
    weights = parameters()
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    buffers = [weight.grad for weight in weights]
    for _ in range(num_passes):
        if in_place:
            with gradients_in_place():
                loss_of(*weights).backward()
        else:
            loss_of(*weights).backward()
    assert all(w.grad is b for w, b in zip(weights, buffers, strict=True)), "a buffer was replaced"
    return buffers


@pytest.mark.parametrize("num_passes", [1, 3])
def test_in_place_gradients_are_autograds(num_passes):
    ours, theirs = accumulate(num_passes, in_place=True), accumulate(num_passes, in_place=False)
    for a, b in zip(ours, theirs, strict=True):
        # A table that is used twice adds its two gradients in another order.
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    with planted_fault("one pass too few"):
        torch.testing.assert_close(
            ours[2], accumulate(num_passes - 1, in_place=True)[2], rtol=1e-6, atol=1e-6
        )


def test_a_single_use_gives_the_same_bits():
    x, grad = torch.randn(21, 16), torch.randn(21, 12)
    results = []
    for in_place in (True, False):
        weight = torch.nn.Parameter(torch.ones(12, 16))
        weight.grad = torch.full_like(weight, 0.5)
        out = linear(x, weight)
        if in_place:
            with gradients_in_place():
                out.backward(grad)
        else:
            out.backward(grad)
        results.append(weight.grad)
    EXACT.check(results[0], results[1])


def test_without_a_buffer_a_gradient_is_returned():
    weight = torch.nn.Parameter(torch.ones(12, 16))
    with gradients_in_place():
        linear(torch.ones(3, 16), weight).sum().backward()
    EXACT.check(weight.grad, torch.full((12, 16), 3.0))


def test_a_tensor_that_is_no_leaf_keeps_its_place_in_the_graph():
    base = torch.nn.Parameter(torch.ones(12, 16))
    base.grad = torch.zeros_like(base)
    with gradients_in_place():
        linear(torch.ones(3, 16), base * 2.0).sum().backward()
    EXACT.check(base.grad, torch.full((12, 16), 6.0))


def test_the_switch_is_off_outside():
    weight = torch.nn.Parameter(torch.ones(12, 16))
    weight.grad = torch.zeros_like(weight)
    with gradients_in_place():
        pass
    (gradient,) = torch.autograd.grad(linear(torch.ones(3, 16), weight).sum(), [weight])
    EXACT.check(gradient, torch.full((12, 16), 3.0))
    EXACT.check(weight.grad, torch.zeros(12, 16))
