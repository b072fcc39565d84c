"""Graph capture: a forward pass as a list of kernel calls, run again without the Python between them.

Between two kernels of a decode step, Python checks shapes, allocates outputs and walks through modules. That is a tenth
of the step, because Python's code and data drop out of the processor's caches in the meantime. A ``CapturedGraph``
holds the arguments of one pass's kernel calls; ``run`` makes the same calls on the same memory, with the pointers of
new inputs. CUDA graphs are the same idea.

Capture assumes nothing about the model. The model runs as written, under a dispatch mode that places every new tensor
in an arena, lets views pass and raises ``NotCapturable`` at anything else that torch would compute. The arena reuses a
tensor's memory once Python has freed the tensor, so the calls share memory exactly as the captured pass did.
"""

import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Never

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zerogap.errors import KernelError, ZerogapError
from zerogap.kernels.native import KernelCall, native

_ALIGNMENT = 64
_aten = torch.ops.aten
_ALLOCATIONS = {_aten.new_empty.default, _aten.empty_like.default, _aten.empty.memory_format}
_VIEWS = {
    _aten.view.default, _aten._unsafe_view.default, _aten.slice.Tensor, _aten.select.int, _aten.t.default,
    _aten.transpose.int, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.detach.default, _aten.alias.default,
    _aten.permute.default, _aten.expand.default, _aten.split_with_sizes.default, _aten.split.Tensor,
}  # fmt: skip


class NotCapturable(ZerogapError):
    """The pass does something that a captured graph cannot repeat; the message says what."""


class Arena:
    """Memory for the tensors of captured graphs that never run at the same time.

    Its pages take no memory until a graph touches them.
    """

    def __init__(self, num_bytes: int) -> None:
        self._base = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        start = -self._base.ctypes.data % _ALIGNMENT
        self.memory = self._base[start : start + num_bytes]


class _Space:
    """Allocates one capture's tensors in an arena; every capture starts with the whole arena."""

    def __init__(self, arena: Arena) -> None:
        self._memory = arena.memory
        self._free = [(0, len(self._memory))]

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor whose memory is free again when it and its views are gone.

        Raises:
            NotCapturable: the arena has no room.
        """
        size = max(1, math.prod(shape) * dtype.itemsize)
        size += -size % _ALIGNMENT
        for i, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[i] = (begin + size, end)
                # torch keeps this array alive as long as the tensor's storage: it ends with the tensor.
                place = self._memory[begin : begin + size]
                weakref.finalize(place, self._give_back, begin, begin + size)
                flat = torch.from_numpy(place).view(dtype)[: math.prod(shape)]
                return flat.view(tuple(shape))
        msg = f"the arena of {len(self._memory)} bytes is too small for the tensors of this pass"
        raise NotCapturable(msg)

    def _give_back(self, begin: int, end: int) -> None:
        merged: list[tuple[int, int]] = []
        for span in sorted([*self._free, (begin, end)]):
            if merged and merged[-1][1] == span[0]:
                merged[-1] = (merged[-1][0], span[1])
            else:
                merged.append(span)
        self._free = merged


_WEIGHT_AT = {"zg_gemm_nt": (1, 6, 7), "zg_norm_gemm_nt": (2, 6, 7), "zg_swiglu_gemm_nt": (1, 5, 6)}
"""Positions of a GEMM's weight, N and K in its arguments; its last three arguments are those of the next GEMM."""


def _link_gemms(calls: Sequence[KernelCall]) -> None:
    """Tell each GEMM which weight comes next, so that it can prefetch that weight."""
    gemms = [call for call in calls if call.function.__name__ in _WEIGHT_AT]
    for call, after in itertools.pairwise(gemms):
        call.arguments[-3:] = [after.arguments[i] for i in _WEIGHT_AT[after.function.__name__]]


class CapturedGraph:
    """Kernel calls in order, and the positions of the inputs' pointers in their arguments."""

    def __init__(
        self,
        calls: list[KernelCall],
        inputs: Sequence[Tensor],
        output: Tensor,
        kept: object,
    ) -> None:
        self._calls, self._output, self._kept = calls, output, kept
        _link_gemms(calls)
        self._places: list[list[tuple[list[Any], int]]] = []
        for tensor in inputs:
            pointer = tensor.data_ptr()
            self._places.append(
                [(c.arguments, i) for c in calls for i, a in enumerate(c.arguments) if a == pointer]
            )

    def run(self, inputs: Sequence[Tensor]) -> Tensor:
        """The output for inputs of the captured shapes; the next run of any graph of the arena overwrites it.

        Raises:
            KernelError: a kernel refuses its input, which it accepted during capture.
        """
        for tensor, places in zip(inputs, self._places, strict=True):
            pointer = tensor.data_ptr()
            for args, i in places:
                args[i] = pointer
        for call in self._calls:
            if call.function(*call.arguments) != call.result:
                msg = f"{call.function.__name__} refuses an input of a captured graph; run the pass without graph capture to see why"
                raise KernelError(msg)
        return self._output


class _CaptureMode(TorchDispatchMode):
    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._space = _Space(arena)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If true, torch marks the method below for torch.compile to skip, which imports the compiler and sympy at its
        # first call: 70 MB and 1.2 s.
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204
        kwargs = kwargs or {}
        if func in _ALLOCATIONS:
            return self._allocate(func, args, kwargs)
        if func not in _VIEWS:
            _refuse(func)
        return func(*args, **kwargs)

    def _allocate(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:  # noqa: ANN401
        like = next((a for a in args if isinstance(a, Tensor)), None)
        if func is _aten.empty_like.default:
            assert like is not None
            if not like.is_contiguous():
                _refuse(func)
            shape = like.shape
        else:
            shape = args[0] if like is None else args[1]
        dtype = kwargs.get("dtype")
        if dtype is None:
            dtype = torch.get_default_dtype() if like is None else like.dtype
        return self._space.allocate(shape, dtype)


def _refuse(func: object) -> Never:
    msg = f"the model's forward computes {func} with torch, between the kernels; graph capture repeats kernel calls only"
    raise NotCapturable(msg)


def _refuse_parts(tensor: Tensor, calls: Sequence[KernelCall], output: Tensor) -> None:
    # A run replaces pointers to the start of an input. A pointer into its middle would keep the captured address.
    first = tensor.data_ptr()
    last = first + tensor.nbytes - 1
    arguments = [a for call in calls for a in call.arguments if isinstance(a, int)]
    if any(first < a <= last for a in arguments) or first <= output.data_ptr() <= last:
        msg = f"the model's forward uses a part of an input of shape {tuple(tensor.shape)}, or returns the input; a captured graph can replace whole inputs only"
        raise NotCapturable(msg)


def capture(
    forward: Callable[[], Tensor], inputs: Sequence[Tensor], arena: Arena
) -> tuple[Tensor, CapturedGraph]:
    """Run ``forward`` once and capture its kernel calls.

    Args:
        forward: the pass; takes no arguments, reads ``inputs`` and tensors with fixed addresses (weights, KV cache).
        inputs: contiguous tensors that differ from run to run; each keeps its shape where a kernel is told the shape.
        arena: holds every tensor that the pass creates.

    Returns:
        the output of this run, and the captured graph.

    Raises:
        NotCapturable: the pass computes something with torch or with kernels that are not C++, or a kernel reads a part
            of an input. The pass may have run in part: run it again without capture.
    """
    calls: list[KernelCall] = []
    with torch.no_grad(), native.capturing(calls), _CaptureMode(arena):
        output = forward()
    if not calls:
        msg = "the pass calls no C++ kernel: the C++ kernels are not in use"
        raise NotCapturable(msg)
    for tensor in inputs:
        _refuse_parts(tensor, calls, output)
    return output, CapturedGraph(calls, inputs, output, arena)
