"""Captured graphs of forward passes, one for each set of input shapes, valid while the model stays the same.

A decode step runs the same kernels as the one before, with other inputs. The second time its shapes occur, the pass is
captured (``kernels.capture``); from the third time on the graph runs without Python between the kernels. Anything
that could make a graph wrong drops all graphs: another address of a weight or of the KV cache, another module, other
kernels, another number of threads. While a module has a hook, every pass runs in Python, since hooks are Python. Only
passes on the CPU are captured. A model that computes with torch between the kernels cannot be captured: it runs in
Python, and ``why_not`` gives the reason.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from zerogap.kernels import (
    PLAIN,
    Arena,
    CapturedGraph,
    Compute,
    NotCapturable,
    capture,
    gemm_choice,
)

_MAX_ROWS = 256
"""Passes with more rows take so long that Python's share does not matter."""
_MAX_GRAPHS = 64
_ARENA_BYTES = 256 << 20
"""Address space, not memory: only pages that a pass touches take up memory."""


class GraphCache:
    """Runs forward passes of one model, as captured graphs where possible."""

    def __init__(self, model: nn.Module, compute: Compute = PLAIN) -> None:
        """Start without graphs; ``compute`` is how every pass computes."""
        self._model, self._compute = model, compute
        self._look_at_modules()
        self._graphs: OrderedDict[Hashable, CapturedGraph] = OrderedDict()
        self._seen: set[Hashable] = set()
        self._arena: Arena | None = None
        self._state: tuple[object, ...] = ()
        self.why_not: str | None = None
        """Why passes are not captured; None while they are."""
        self._refused_choice: tuple[object, ...] = ()
        self.num_repeated = 0
        """Passes that ran as a captured graph."""

    def forward(
        self, inputs: Sequence[Tensor], places: Sequence[Tensor], run: Callable[[], Tensor]
    ) -> Tensor:
        """The result of ``run()``, or of its captured graph; valid until the next call.

        Args:
            inputs: every tensor that ``run`` reads and that is new in each call, the token ids first; their shapes
                decide which graph fits.
            places: tensors that ``run`` reads or writes in place, besides the model's own.
            run: the pass itself.
        """
        if len(inputs[0]) > _MAX_ROWS or not inputs[0].is_cpu or self._is_refused():
            return run()
        if self._children() != self._known_children:
            self._look_at_modules()
            self._graphs.clear()
        if any(self._hooks):
            return run()
        state = self._model_state(places)
        if state != self._state:
            self._graphs.clear()
            self._state = state
        shapes = tuple(tensor.shape for tensor in inputs)
        graph = self._graphs.get(shapes)
        if graph is not None:
            self._graphs.move_to_end(shapes)
            self.num_repeated += 1
            return graph.run(inputs)
        if shapes not in self._seen:
            self._seen.add(shapes)
            return run()
        return self._capture(shapes, inputs, run)

    def _is_refused(self) -> bool:
        """Whether capturing failed with the present GEMM kernels; with others it may succeed."""
        if self.why_not is not None and gemm_choice(self._compute) != self._refused_choice:
            self.why_not = None
        return self.why_not is not None

    def _capture(
        self, shapes: Hashable, inputs: Sequence[Tensor], run: Callable[[], Tensor]
    ) -> Tensor:
        if self._arena is None:
            self._arena = Arena(_ARENA_BYTES)
        try:
            output, self._graphs[shapes] = capture(run, inputs, self._arena)
        except NotCapturable as reason:
            self.why_not, self._refused_choice = str(reason), gemm_choice(self._compute)
            return run()
        if len(self._graphs) > _MAX_GRAPHS:
            self._graphs.popitem(last=False)
        return output

    def _look_at_modules(self) -> None:
        """Find the dictionaries in which a module's parts may be replaced; their contents are read at each pass."""
        modules = list(self._model.modules())
        self._submodules = [m._modules for m in modules if m._modules]
        self._known_children = self._children()
        self._tensors = [d for m in modules for d in (m._parameters, m._buffers) if d]
        self._hooks: list[Mapping[int, object]] = [
            torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks,
            *(h for m in modules for h in (m._forward_hooks, m._forward_pre_hooks)),
        ]  # fmt: skip

    def _children(self) -> list[nn.Module | None]:
        return list(chain.from_iterable(d.values() for d in self._submodules))

    def _model_state(self, places: Sequence[Tensor]) -> tuple[object, ...]:
        """What graphs depend on besides the modules: while it is equal, the graphs are valid."""
        addresses = [None if t is None else t.data_ptr() for d in self._tensors for t in d.values()]
        addresses += [tensor.data_ptr() for tensor in places]
        return (*addresses, torch.get_num_threads(), gemm_choice(self._compute))
