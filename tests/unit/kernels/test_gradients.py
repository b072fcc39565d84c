"""Gradients that are added to ``.grad`` where they are made: autograd's own, to the bit where a weight is used once."""

import numpy as np
import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.errors import KernelError
from zerogap.kernels import (
    build_packed_layout,
    embedding,
    gradients_in_place,
    linear,
    log_probs,
    norm_linear,
    packed_attention,
    qkv_rope,
    rms_norm,
    rope_tables,
    swiglu,
    swiglu_linear,
)
from zerogap.kernels.native import native

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


def rope_of(x: torch.Tensor) -> torch.Tensor:
    cos, sin = rope_tables(torch.ones(8), torch.arange(len(x)))
    return qkv_rope(x, cos, sin, None, None, num_heads=1, num_kv_heads=1, eps=1e-5)[0]


def attention_of(x: torch.Tensor) -> torch.Tensor:
    layout = build_packed_layout([np.arange(len(x))], [0], len(x))
    heads = x.view(len(x), 3, 16)
    return packed_attention(heads, heads[:, :1], heads[:, :1], layout, scale=1.0)


@pytest.mark.skipif(native.library is None, reason="torch's own backward has second gradients")
@pytest.mark.parametrize(
    "function",
    [
        lambda x: linear(x, x[:5]),
        lambda x: rms_norm(x, x[0], 1e-5),
        swiglu,
        lambda x: norm_linear(x, x[0], x[:5], eps=1e-5),
        lambda x: swiglu_linear(x, x[:, :24]),
        lambda x: embedding(IDS, x),
        lambda x: log_probs(x[:6], x, IDS, torch.ones(6), vocab_limit=8)[0],
        rope_of,
        attention_of,
    ],
)
def test_a_gradient_of_a_gradient_is_refused(function):
    x = torch.randn(8, 48, requires_grad=True)
    torch.autograd.grad((function(x) ** 2).sum(), [x])
    with pytest.raises(KernelError, match="a gradient of a gradient"):
        torch.autograd.grad((function(x) ** 2).sum(), [x], create_graph=True)


def test_the_switch_is_off_outside():
    weight = torch.nn.Parameter(torch.ones(12, 16))
    weight.grad = torch.zeros_like(weight)
    with gradients_in_place():
        pass
    (gradient,) = torch.autograd.grad(linear(torch.ones(3, 16), weight).sum(), [weight])
    EXACT.check(gradient, torch.full((12, 16), 3.0))
    EXACT.check(weight.grad, torch.zeros(12, 16))
