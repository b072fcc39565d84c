"""Captured graphs of the engine: they change no bit, and are dropped when anything they depend on changes."""

import pytest
import torch
from helpers.tolerance import EXACT
from torch import nn

from zerogap.engine.graph_cache import GraphCache
from zerogap.kernels import linear
from zerogap.kernels.native import native

pytestmark = pytest.mark.skipif(
    native.library is None or not native.has_gemm, reason="no C++ GEMM on this processor"
)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        return linear(x, self.weight)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))
        self.inner = Inner()

    def forward(self, x):
        return self.inner(linear(x, self.weight))


class Subject:
    def __init__(self):
        self.model, self.place = Model(), torch.zeros(3)
        self.graphs = GraphCache(self.model)
        self.calls = 0

    @torch.no_grad()
    def __call__(self, x):
        def run():
            self.calls += 1
            return self.model(x)

        out = self.graphs.forward([x], [self.place], run).clone()
        EXACT.check(out, self.model(x))
        return out


@pytest.fixture
def subject():
    return Subject()


def warm(subject, num_rows=4):
    for _ in range(3):
        subject(torch.randn(num_rows, 16))


def test_the_third_pass_of_a_shape_is_repeated(subject):
    warm(subject)
    assert (subject.calls, subject.graphs.num_repeated) == (2, 1)
    warm(subject, num_rows=5)
    assert (subject.calls, subject.graphs.num_repeated) == (4, 2)


def test_weights_that_are_updated_in_place_keep_the_graphs(subject):
    warm(subject)
    with torch.no_grad():
        subject.model.weight.add_(1.0)
    subject(torch.randn(4, 16))
    assert subject.graphs.num_repeated == 2


def replace_parameter(subject):
    subject.model.weight = nn.Parameter(torch.randn(16, 16))


def replace_data(subject):
    subject.model.weight.data = torch.randn(16, 16)


def replace_module(subject):
    subject.model.inner = Inner()


def move_place(subject):
    subject.place = torch.zeros(3)


def change_threads(_subject):
    torch.set_num_threads(torch.get_num_threads() + 1)


@pytest.mark.parametrize(
    "change", [replace_parameter, replace_data, replace_module, move_place, change_threads]
)
def test_graphs_are_dropped_when_anything_they_depend_on_changes(subject, change):
    warm(subject)
    threads, old = torch.get_num_threads(), (subject.place, *subject.model.state_dict().values())
    try:
        change(subject)
        subject(torch.randn(4, 16))
        assert subject.graphs.num_repeated == 1
        subject(torch.randn(4, 16))
        assert subject.graphs.num_repeated == 2, "captured again"
    finally:
        torch.set_num_threads(threads)
    assert len(old) == 3  # kept alive, so that an address cannot come back by chance


@pytest.mark.parametrize(
    "register",
    [
        lambda model, hook: model.inner.register_forward_hook(hook),
        lambda model, hook: model.inner.register_forward_pre_hook(hook),
        lambda _, hook: nn.modules.module.register_module_forward_hook(hook),
        lambda _, hook: nn.modules.module.register_module_forward_pre_hook(hook),
    ],
)
def test_a_hook_is_called_in_every_pass_and_graphs_are_used_again_without_it(subject, register):
    warm(subject)
    passes = []
    handle = register(subject.model, lambda module, *_: passes.append(module))
    try:
        for _ in range(4):
            subject(torch.randn(4, 16))
    finally:
        handle.remove()
    # The subject's own comparison is a pass too.
    assert passes.count(subject.model.inner) == 2 * 4
    assert subject.graphs.num_repeated == 1
    subject(torch.randn(4, 16))
    assert subject.graphs.num_repeated == 2


def test_a_model_that_computes_with_torch_is_run_as_it_is_and_the_reason_is_kept(subject):
    subject.model.forward = lambda x: linear(x, subject.model.weight) + 1.0
    for _ in range(4):
        subject(torch.randn(4, 16))
    assert subject.graphs.num_repeated == 0
    assert "aten" in subject.graphs.why_not
    assert "add" in subject.graphs.why_not


def test_long_passes_are_not_captured(subject):
    warm(subject, num_rows=300)
    assert subject.graphs.num_repeated == 0


def test_the_oldest_graph_goes_when_there_are_too_many(subject, monkeypatch):
    monkeypatch.setattr("zerogap.engine.graph_cache._MAX_GRAPHS", 2)
    for num_rows in (1, 2, 3):
        warm(subject, num_rows)
    assert len(subject.graphs._graphs) == 2
    subject(torch.randn(1, 16))
    assert subject.graphs.num_repeated == 3, "the first was captured again"
