"""Gradients that the backward adds to ``.grad`` itself: autograd's own, to the bit if a weight is used once."""

import numpy as np
import pytest
import torch
from helpers.kernel_paths import as_tuple
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.errors import KernelError
from zerogap.kernels import (
    PLAIN,
    Compute,
    Head,
    backend_of,
    build_packed_layout,
    embedding,
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

IDS = torch.tensor([3, 1, 3, 0, 3, 7])


IN_PLACE = Compute(adds_to_grad=True)


def loss_of(
    table: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    down: torch.Tensor,
    *,
    compute: Compute = PLAIN,
) -> torch.Tensor:
    """Every GEMM with a weight that this room has; the table is both embedding and head."""
    x = embedding(IDS, table, compute=compute)
    gate_up = norm_linear(x, norm, weight, eps=1e-5, compute=compute)
    hidden = swiglu_linear(gate_up, down, residual_TO=x, compute=compute)
    log_prob, entropy = log_probs(
        hidden, Head(table, len(table)), IDS.flip(0), torch.ones(6), compute=compute
    )
    return ((log_prob + entropy) * torch.arange(1.0, 7.0)).sum()


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(9, 16), (16,), (64, 16), (16, 32)]
    return [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]


def accumulate(num_passes: int, *, in_place: bool) -> list[torch.Tensor]:
    weights = parameters()
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    places = [weight.grad.data_ptr() for weight in weights]
    for _ in range(num_passes):
        loss_of(*weights, compute=IN_PLACE if in_place else PLAIN).backward()
    gradients = [weight.grad for weight in weights]
    assert [g.data_ptr() for g in gradients] == places, "a buffer was replaced"
    return gradients


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
        linear(x, weight, compute=IN_PLACE if in_place else PLAIN).backward(grad)
        results.append(weight.grad)
    EXACT.check(results[0], results[1])


def test_without_a_buffer_a_gradient_is_returned():
    weight = torch.nn.Parameter(torch.ones(12, 16))
    linear(torch.ones(3, 16), weight, compute=IN_PLACE).sum().backward()
    EXACT.check(weight.grad, torch.full((12, 16), 3.0))


def test_a_tensor_that_is_no_leaf_keeps_its_place_in_the_graph():
    base = torch.nn.Parameter(torch.ones(12, 16))
    base.grad = torch.zeros_like(base)
    linear(torch.ones(3, 16), base * 2.0, compute=IN_PLACE).sum().backward()
    EXACT.check(base.grad, torch.full((12, 16), 6.0))


def gradients_of(function, inputs, *, frozen=()):
    """Gradients of a sum with fixed weights; None for a frozen input."""
    leaves = [x.clone().requires_grad_(i not in frozen) for i, x in enumerate(inputs)]
    outputs = as_tuple(function(*leaves))
    generator = torch.Generator().manual_seed(1)
    sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outputs).backward()
    return [leaf.grad for leaf in leaves]


def heads_of(x: torch.Tensor, q_norm: torch.Tensor, k_norm: torch.Tensor) -> tuple:
    cos, sin = rope_tables(torch.ones(8), torch.arange(len(x)))
    return qkv_rope(x, cos, sin, q_norm, k_norm, num_heads=1, num_kv_heads=1, eps=1e-5)


NORMS = {
    "rms_norm": (lambda x, norm: rms_norm(x, norm, 1e-5), [(70, 48), (48,)], {1}),
    "norm_linear": (
        lambda x, norm, weight: norm_linear(x, norm, weight, eps=1e-5),
        [(70, 48), (48,), (5, 48)],
        {1},
    ),
    "qkv_rope": (heads_of, [(70, 48), (16,), (16,)], {1, 2}),
}


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("name", NORMS)
def test_the_gradient_of_a_frozen_norm_is_not_computed_and_the_others_keep_their_bits(
    name, monkeypatch
):
    function, shapes, norms = NORMS[name]
    inputs, backend, found = [torch.randn(shape) for shape in shapes], backend_of(torch.ones(1)), []
    for operation in ("rms_norm_backward", "qkv_rope_backward"):
        honest = getattr(backend, operation)

        def watched(*tensors, honest=honest, **needs):
            found.append(honest(*tensors, **needs))
            return found[-1]

        monkeypatch.setattr(backend, operation, watched)
    trained = gradients_of(function, inputs)
    frozen = gradients_of(function, inputs, frozen=norms)
    others = [i for i in range(len(inputs)) if i not in norms]
    EXACT.check([frozen[i] for i in others], [trained[i] for i in others])
    computed = [[gradient is not None for gradient in result] for result in found]
    assert computed == [[True] * (1 + len(norms)), [True] + [False] * len(norms)]


def rope_of(x: torch.Tensor) -> torch.Tensor:
    cos, sin = rope_tables(torch.ones(8), torch.arange(len(x)))
    return qkv_rope(x, cos, sin, None, None, num_heads=1, num_kv_heads=1, eps=1e-5)[0]


def attention_of(x: torch.Tensor) -> torch.Tensor:
    layout = build_packed_layout([np.arange(len(x))], [0], len(x))
    heads = x.view(len(x), 3, 16)
    return packed_attention(heads, heads[:, :1], heads[:, :1], layout, scale=1.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: linear(x, x[:5]),
        lambda x: rms_norm(x, x[0], 1e-5),
        swiglu,
        lambda x: norm_linear(x, x[0], x[:5], eps=1e-5),
        lambda x: swiglu_linear(x, x[:, :24]),
        lambda x: embedding(IDS, x),
        lambda x: log_probs(x[:6], Head(x, 8), IDS, torch.ones(6))[0],
        lambda x: log_probs(x[:6], Head(x, 8), IDS, torch.ones(6))[1],
        rope_of,
        attention_of,
    ],
)
def test_a_gradient_of_a_gradient_is_refused(function):
    x = torch.randn(8, 48, requires_grad=True)
    torch.autograd.grad((function(x) ** 2).sum(), [x])
    with pytest.raises(KernelError, match=r"double backward .* is unsupported"):
        torch.autograd.grad((function(x) ** 2).sum(), [x], create_graph=True)


def test_autograd_gets_a_gradient_of_its_own_unless_it_is_asked_to_add():
    weight = torch.nn.Parameter(torch.ones(12, 16))
    weight.grad = torch.zeros_like(weight)
    (gradient,) = torch.autograd.grad(linear(torch.ones(3, 16), weight).sum(), [weight])
    EXACT.check(gradient, torch.full((12, 16), 3.0))
    EXACT.check(weight.grad, torch.zeros(12, 16))


@pytest.mark.parametrize("compute", [PLAIN, IN_PLACE])
def test_hooks_of_autograd_see_every_gradient_once_a_pass_and_whole(compute):
    weights, seen = parameters(), []
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
        weight.register_post_accumulate_grad_hook(
            lambda w: seen.append(
                (next(i for i, x in enumerate(weights) if x is w), w.grad.clone())
            )
        )
    for _ in range(2):
        seen.clear()
        loss_of(*weights, compute=compute).backward()
        assert sorted(index for index, _ in seen) == [0, 1, 2, 3]
        for index, gradient in seen:
            EXACT.check(gradient, weights[index].grad)
    with planted_fault("the hook of the tied table runs before its second use"):
        table_gradient = next(gradient for index, gradient in seen if index == 0)
        EXACT.check(table_gradient, accumulate(1, in_place=True)[0])


def test_a_hook_may_take_the_gradient_away():
    """FSDP2 does so, and reduces it elsewhere: the next pass starts without a buffer."""
    weights, taken = parameters(), []

    def take(weight):
        taken.append(weight.grad)
        weight.grad = None

    weights[0].register_post_accumulate_grad_hook(take)
    for _ in range(2):
        loss_of(*weights, compute=IN_PLACE).backward()
    EXACT.check(taken[0], taken[1])
    assert taken[0].data_ptr() != taken[1].data_ptr()


def test_no_gradient_takes_memory_beside_its_buffer():
    """A table that is used twice: each of autograd's two temporaries is as large as the table."""
    table = torch.nn.Parameter(torch.randn(50_000, 16))
    table.grad = torch.zeros_like(table)

    def largest_allocation(compute):
        x = embedding(IDS, table, compute=compute)
        loss = log_probs(x, Head(table, 4096), IDS, torch.ones(6), compute=compute)[0].sum()
        with torch.profiler.profile(profile_memory=True) as profiled:
            loss.backward()
        return max(event.self_cpu_memory_usage for event in profiled.key_averages())

    assert largest_allocation(IN_PLACE) < table.nbytes
    with planted_fault("autograd adds"):
        assert largest_allocation(PLAIN) < table.nbytes
