"""Graph capture: same bits for other inputs, memory shared as in the captured pass, refusals."""

import gc

import numpy as np
import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tolerance import EXACT

from zerogap.kernels import (
    Arena,
    NotCapturable,
    capture,
    linear,
    norm_linear,
    swiglu,
    swiglu_linear,
)
from zerogap.kernels.graph import _Space
from zerogap.kernels.native import native

pytestmark = pytest.mark.skipif(
    native.library is None or not native.has_gemm, reason="no C++ GEMM on this processor"
)
WEIGHTS = [torch.randn(n, 32) * 0.2 for n in (64, 48)]
NORM, DOWN = torch.rand(32) + 0.5, torch.randn(32, 32) * 0.2


def block(x):
    hidden = swiglu_linear(norm_linear(x, NORM, WEIGHTS[0], eps=1e-5), DOWN, residual_TO=x)
    return linear(hidden, WEIGHTS[1])[:, :48].flatten(1)


@torch.no_grad()
def captured(function, x):
    return capture(lambda: function(x), [x], Arena(1 << 20))


@pytest.mark.parametrize("num_rows", [1, 8, 17])
@torch.no_grad()
def test_a_captured_graph_computes_what_the_pass_computes_for_any_input(num_rows):
    x = torch.randn(num_rows, 32)
    output, graph = captured(block, x)
    EXACT.check(output, block(x))
    for _ in range(3):
        other = torch.randn(num_rows, 32)
        EXACT.check(graph.run([other]), block(other))
    with planted_fault("the input of another run"):
        EXACT.check(graph.run([x]), block(other))


@torch.no_grad()
def test_weights_are_read_at_every_run():
    x, weight = torch.randn(5, 32), torch.randn(16, 32)
    _, graph = captured(lambda y: linear(y, weight), x)
    weight.mul_(2.0)
    EXACT.check(graph.run([x]), linear(x, weight))


@torch.no_grad()
def test_every_gemm_knows_the_weight_that_comes_next():
    _, graph = captured(block, torch.randn(3, 32))
    gemm = [c.arguments for c in graph._calls]
    assert [a[-3:] for a in gemm] == [
        [DOWN.data_ptr(), 32, 32],
        [WEIGHTS[1].data_ptr(), 48, 32],
        [None, 0, 0],
    ]


def test_what_torch_computes_between_kernels_stops_the_capture():
    x = torch.randn(5, 32)
    for function in (lambda y: linear(y, DOWN) + 1.0, lambda y: linear(y * 2.0, DOWN), torch.tanh):
        with pytest.raises(NotCapturable, match="computes aten"):
            captured(function, x)


@pytest.mark.parametrize(
    "function",
    [
        lambda y: linear(y[2:], DOWN),
        lambda y: linear(y[:2], DOWN, residual_TO=y[3:]),
        lambda y: (linear(y, DOWN), y[:2])[1],
    ],
)
def test_a_part_of_an_input_is_not_captured_since_another_input_is_elsewhere(function):
    with pytest.raises(NotCapturable, match="a part of an input"):
        captured(function, torch.randn(5, 32))


def test_a_pass_without_kernels_is_not_captured(monkeypatch):
    with pytest.raises(NotCapturable, match="not in use"):
        captured(lambda y: y[:2], torch.randn(5, 32))


def test_a_failed_capture_leaves_nothing_switched_on():
    with pytest.raises(NotCapturable):
        captured(lambda y: linear(y, DOWN) + 1.0, torch.randn(5, 32))
    assert native._tape.calls is None
    EXACT.check(torch.ones(2) + 1.0, torch.full((2,), 2.0))


@torch.no_grad()
def test_places_of_forgotten_tensors_are_used_again():
    """A chain of 50 GEMMs needs room for only a few of its outputs at a time."""
    x = torch.randn(64, 32)

    def chain(y):
        for _ in range(50):
            y = linear(y, DOWN)
        return y

    # Room for two live outputs of 8 KB and one being computed.
    output, graph = capture(lambda: chain(x), [x], Arena(3 * 64 * 32 * 4))
    EXACT.check(output, chain(x))
    EXACT.check(graph.run([x]), chain(x))
    with pytest.raises(NotCapturable, match="too small"):
        capture(lambda: chain(x), [x], Arena(64 * 32 * 4))


@torch.no_grad()
def test_a_tensor_that_is_still_needed_keeps_its_place():
    x = torch.randn(9, 32)

    def keeps(y):
        first = linear(y, DOWN)
        later = first
        for _ in range(5):
            later = linear(later, DOWN)
        return linear(later, DOWN, residual_TO=first)

    _, graph = captured(keeps, x)
    EXACT.check(graph.run([x]), keeps(x))


@torch.no_grad()
def test_graphs_of_one_arena_do_not_touch_each_other():
    arena = Arena(1 << 20)
    small, large = torch.randn(3, 32), torch.randn(40, 32)
    _, first = capture(lambda: block(small), [small], arena)
    _, second = capture(lambda: block(large), [large], arena)
    for _ in range(2):
        EXACT.check(first.run([small]), block(small))
        EXACT.check(second.run([large]), block(large))
    del first
    gc.collect()
    EXACT.check(second.run([large]), block(large))


@pytest.mark.parametrize("seed", range(20))
def test_places_never_overlap_and_all_comes_back(seed):
    rng = np.random.default_rng(seed)
    space, alive = _Space(Arena(1 << 16)), {}
    for step in range(200):
        if alive and rng.random() < 0.5:
            del alive[rng.choice(list(alive))]
        else:
            try:
                tensor = space.allocate((int(rng.integers(0, 700)),), torch.float32)
            except NotCapturable:
                alive.clear()
                continue
            alive[step] = tensor.fill_(step)
        assert all((t == s).all() for s, t in alive.items())
    alive.clear()
    del tensor
    gc.collect()
    assert space._free == [(0, 1 << 16)]


def test_a_kernel_of_another_kind_of_tensor_is_refused():
    with pytest.raises(NotCapturable):
        captured(lambda y: swiglu(y.double()), torch.randn(4, 32))
