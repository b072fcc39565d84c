"""Which backend computes, what is refused, and that a graph capture belongs to its own thread."""

import threading

import pytest
import torch
from helpers.kernel_paths import running_on, values_and_gradients
from helpers.planted_fault import planted_fault
from helpers.tolerance import BF16_MODEL_GRADIENT, EXACT
from torch._subclasses.fake_tensor import FakeTensorMode

from zerogap.errors import KernelError
from zerogap.kernels import (
    Arena,
    Backend,
    backend_of,
    capture,
    embedding,
    linear,
    norm_linear,
    rms_norm,
    swiglu_linear,
)
from zerogap.kernels.choice import BACKENDS
from zerogap.kernels.native import native

HALF = (torch.float16, torch.bfloat16)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_has_every_operation(name):
    assert isinstance(BACKENDS[name], Backend)
    assert BACKENDS[name].name == name


@pytest.mark.skipif(native.library is None, reason="no native kernels here")
def test_device_and_dtype_choose():
    assert backend_of(torch.ones(2)) is native
    assert backend_of(torch.ones(2).double()) is BACKENDS["torch"]
    assert backend_of(torch.ones(2, dtype=torch.bfloat16)) is BACKENDS["torch"]
    assert backend_of(torch.ones(2, device="meta")) is BACKENDS["torch"]
    with running_on("toy"):
        assert backend_of(torch.ones(2)) is BACKENDS["toy"]
    assert backend_of(torch.ones(2)) is native


@pytest.mark.parametrize("shape", [(), (8,)])
def test_tensors_of_several_devices_are_refused(shape):
    with pytest.raises(KernelError, match=r"several devices: .* on cpu, .* on meta"):
        backend_of(torch.ones(3, 8), torch.ones(shape, device="meta"))


class Wrapped(torch.Tensor):
    """Like a DTensor: a tensor whose elements are elsewhere."""


@pytest.mark.skipif(native.library is None, reason="no native kernels here")
def test_a_tensor_whose_elements_are_elsewhere_is_refused_by_name():
    x, norm = torch.ones(3, 8), torch.ones(8)
    wrapped = torch.ones(8).as_subclass(Wrapped)
    with torch.no_grad(), pytest.raises(KernelError, match="was given a Wrapped"):
        rms_norm(x, wrapped, 1e-5)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.ones(3, 8))
        with torch.no_grad(), pytest.raises(KernelError, match="was given a FakeTensor"):
            rms_norm(fake, norm, 1e-5)
    EXACT.check(rms_norm(x, torch.nn.Parameter(norm), 1e-5).detach(), rms_norm(x, norm, 1e-5))


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_a_dtype_of_the_tensors(dtype):
    """Computed in fp32 and rounded once: one or two roundings away from float64 on the same values."""
    generator = torch.Generator().manual_seed(4)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    ids = torch.tensor([1, 0, 2, 1, 1])
    inputs = [normal(3, 16), normal(16), normal(48, 16), normal(16, 24)]

    def layer(table, norm, gate_up, down):
        x = embedding(ids, table)
        hidden = swiglu_linear(norm_linear(x, norm, gate_up, eps=1e-5), down, residual_TO=x)
        return linear(hidden, gate_up)

    values, gradients = values_and_gradients(layer, inputs)
    assert all(x.dtype is dtype for x in [*values, *gradients])
    expected = values_and_gradients(layer, [x.double() for x in inputs])
    found = [[x.double() for x in part] for part in (values, gradients)]
    BF16_MODEL_GRADIENT.check(found, list(expected))
    with planted_fault("one weight"):
        nudged = [inputs[0], inputs[1], inputs[2] * 1.2, inputs[3]]
        worse = values_and_gradients(layer, [x.double() for x in nudged])
        BF16_MODEL_GRADIENT.check(list(worse), list(expected))


@pytest.mark.skipif(not native.has_gemm, reason="no C++ GEMM on this processor")
@torch.no_grad()
def test_a_capture_has_the_calls_of_its_own_thread_alone():
    weight, x = torch.randn(32, 32), torch.randn(5, 32)
    other_x = torch.randn(40, 32)
    stop, computed, captured_at_once = threading.Event(), [], []
    ready = threading.Barrier(3)

    def compute() -> None:
        """What a trainer's thread does."""
        with torch.no_grad():
            ready.wait()
            while not stop.is_set():
                computed.append(linear(other_x, weight))

    def capture_too() -> None:
        ready.wait()
        while not stop.is_set():
            _, graph = capture(lambda: linear(other_x, weight), [other_x], Arena(1 << 16))
            captured_at_once.append(len(graph._calls))

    threads = [threading.Thread(target=work) for work in (compute, capture_too)]
    for thread in threads:
        thread.start()
    ready.wait()
    for _ in range(30):
        output, graph = capture(lambda: linear(linear(x, weight), weight), [x], Arena(1 << 16))
        assert len(graph._calls) == 2
        EXACT.check(output, linear(linear(x, weight), weight))
    while not (computed and captured_at_once):
        pass
    stop.set()
    for thread in threads:
        thread.join()
    assert set(captured_at_once) == {1}
    EXACT.check(computed[-1], linear(other_x, weight))
    with planted_fault("one tape for all threads"):
        assert len(graph._calls) == 3
