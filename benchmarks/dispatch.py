"""How much time choosing a backend adds to a call, with our look-up and with PyTorch's dispatcher (``torch.library``).

    python benchmarks/dispatch.py

One row of RMSNorm at SmolLM2-135M's width, so that the time is mostly the call. The ways take turns; a figure is the minimum,
in processor time, which other jobs do not affect. The last column is the difference for all calls of a decode step without
captured graphs.
"""

import sys
from collections.abc import Callable
from time import thread_time

import torch

from zerogap.kernels import backend_of, rms_norm
from zerogap.kernels.native import native

CALLS, ROUNDS = 5_000, 9
NUM_LAYERS, CALLS_A_LAYER = 30, 6


def library_op() -> Callable[..., torch.Tensor]:
    """The same kernel behind PyTorch's dispatcher, with the fake implementation that it needs."""
    library = torch.library.Library("zg_dispatch", "DEF")
    library.define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor")
    library.impl("rms_norm", lambda x, weight, eps: native.rms_norm(x, weight, eps)[0], "CPU")
    torch.library.register_fake("zg_dispatch::rms_norm", lambda x, *_: torch.empty_like(x), lib=library)  # fmt: skip
    op = torch.ops.zg_dispatch.rms_norm.default
    return lambda *arguments, _keeps=library: op(*arguments)


def main() -> None:
    """Print microseconds per call of each way, and what a decode step would take longer."""
    assert native.library is not None, native.why_not
    x, weight = torch.randn(1, 576), torch.ones(576)
    through_library = library_op()
    ways = {
        "the kernel alone": lambda: native.rms_norm(x, weight, 1e-5)[0],
        "look-up of a backend": lambda: rms_norm(x, weight, 1e-5),
        "torch.library": lambda: through_library(x, weight, 1e-5),
        "a look-up of four tensors, without a kernel": lambda: backend_of(x, weight, weight, x),
    }
    least = dict.fromkeys(ways, float("inf"))
    with torch.no_grad():
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start_s = thread_time()
                for _ in range(CALLS):
                    way()
                least[name] = min(least[name], (thread_time() - start_s) / CALLS)
    alone_s = least["the kernel alone"]
    for name, seconds in least.items():
        step_ms = 1e3 * (seconds - alone_s) * NUM_LAYERS * CALLS_A_LAYER
        sys.stdout.write(
            f"{name:44} {1e6 * seconds:6.2f} us a call, {step_ms:6.3f} ms a step more\n"
        )


if __name__ == "__main__":
    main()
