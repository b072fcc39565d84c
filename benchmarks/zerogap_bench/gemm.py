"""The machine's own limit: how fast its GEMMs are at the model's shapes, right now, on these threads.

``limit_gflops`` is the FLOP-weighted harmonic mean of a rate for each product: the rate a program would reach that did
nothing but the model's GEMMs. A product's rate is the larger of two medians into warm buffers, the BLAS
(``torch.mm(x, W.t(), out=...)``) and zerogap's own: whichever library a program took, it could have taken the other.
Attention's FLOPs are in ``share_of_limit``'s numerator though no attention is in the limit, so a share includes what
attention costs beyond a GEMM of equal FLOPs.

M rows, I in, O out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from zerogap_bench.flops import ModelShape, Work, gemm_flops

if TYPE_CHECKING:
    from torch import Tensor

_Multiply: TypeAlias = "Callable[[Tensor, Tensor, Tensor], object]"

HEAD_CHUNK = 4096
"""Columns of the head in one product, as the kernels compute it."""

_WARM_UP_CALLS = 3
_MIN_SAMPLES = 7
_SAMPLE_S = 0.01
"""A sample is as many calls as take this long, so that the clock's and the interpreter's share vanishes."""
_SHAPE_S = 0.25
"""Time for one product by one library, beyond the minimum of samples."""


@dataclass(frozen=True)
class Limit:
    """What was measured at one number of rows."""

    num_rows: int
    by_library: Mapping[str, Mapping[str, float]]
    """Median GFLOP/s by library (``blas``, ``zerogap``) and product: qkv, o, gate_up, down, head."""

    @property
    def rates(self) -> dict[str, float]:
        """By product, the faster library's."""
        gemm = next(iter(self.by_library.values()))
        return {name: max(found[name] for found in self.by_library.values()) for name in gemm}

    def gflops(self, flops: Mapping[str, float]) -> float:
        """The limit for work that is distributed over the products like ``flops``, in GFLOP/s."""
        return harmonic_mean(flops, self.rates)


def harmonic_mean(flops: Mapping[str, float], rates: Mapping[str, float]) -> float:
    """Total FLOPs over total time, each product at its own rate (zero-FLOP products do not count)."""
    seconds = sum(amount / rates[name] for name, amount in flops.items())
    return sum(flops.values()) / seconds


def phase_limit_gflops(shape: ModelShape, work: Work, limits: Sequence[Limit]) -> float:
    """Mean over measurements (before and after a run) of the limit for one phase's work."""
    flops = gemm_flops(shape, work)
    return sum(limit.gflops(flops) for limit in limits) / len(limits)


def limit_gflops(
    shape: ModelShape, works: Mapping[str, Work], limits: Mapping[str, Sequence[Limit]]
) -> float:
    """The limit for phases that follow each other, each at its own: all FLOPs over the time they would take."""
    rates = {phase: phase_limit_gflops(shape, work, limits[phase]) for phase, work in works.items()}
    return harmonic_mean({phase: work.total for phase, work in works.items()}, rates)


def share_of_limit(flops: float, *, seconds: float, limit: float) -> float:
    """``flops / seconds / limit``, the limit in GFLOP/s."""
    return flops / seconds / (limit * 1e9)


def measure_limit(shape: ModelShape, *, num_rows: int, seconds_a_shape: float = _SHAPE_S) -> Limit:
    """Time each product at ``num_rows`` rows on torch's present threads.

    Args:
        shape: of the model.
        num_rows: of the products.
        seconds_a_shape: time for one product by one library, beyond the minimum of samples.
    """
    chunk = min(HEAD_CHUNK, shape.vocab_size)
    gemms = {**shape.layer_gemms, "head": (shape.hidden_size, chunk)}
    found: dict[str, dict[str, float]] = {name: {} for name in _libraries()}
    for product, (num_in, num_out) in gemms.items():
        for library, multiply in _libraries().items():
            found[library][product] = _median_gflops(
                multiply, num_rows, num_in, num_out, seconds_a_shape
            )
    return Limit(num_rows, found)


class LimitSide:
    """Measures in a process of its own."""

    def __init__(self, *, shape: ModelShape) -> None:
        self._shape = shape

    def measure(self, *, num_rows: int) -> tuple[Limit, float | None]:
        """The products, and the multiply-adds from registers alone."""
        from zerogap_bench.roofline import measure_fma_peak

        return measure_limit(self._shape, num_rows=num_rows), measure_fma_peak()

    def bandwidth(self) -> tuple[float, float]:
        """(read, copy) of memory, GB/s."""
        from zerogap_bench.roofline import measure_bandwidth

        found = measure_bandwidth()
        return found.read, found.copy


def _libraries() -> dict[str, _Multiply]:
    import torch

    from zerogap.kernels import PLAIN, backend_of

    def blas(x_MI: Tensor, weight_OI: Tensor, out_MO: Tensor) -> object:
        return torch.mm(x_MI, weight_OI.t(), out=out_MO)

    def ours(x_MI: Tensor, weight_OI: Tensor, out_MO: Tensor) -> object:
        return backend_of(x_MI).product(x_MI, weight_OI, out_MO=out_MO, compute=PLAIN)

    return {"blas": blas, "zerogap": ours}


def _median_gflops(
    multiply: _Multiply, num_rows: int, num_in: int, num_out: int, seconds: float
) -> float:
    import torch

    generator = torch.Generator().manual_seed(0)
    x_MI = torch.randn(num_rows, num_in, generator=generator)
    weight_OI = torch.randn(num_out, num_in, generator=generator)
    out_MO = torch.zeros(len(x_MI), num_out)

    def seconds_of(calls: int) -> float:
        start_s = perf_counter()
        for _ in range(calls):
            multiply(x_MI, weight_OI, out_MO)
        return perf_counter() - start_s

    seconds_of(_WARM_UP_CALLS)
    calls = max(1, round(_SAMPLE_S / seconds_of(1)))
    deadline_s = perf_counter() + seconds
    samples = []
    while len(samples) < _MIN_SAMPLES or perf_counter() < deadline_s:
        samples.append(seconds_of(calls) / calls)
    return 2.0 * num_rows * num_in * num_out / median(samples) / 1e9
