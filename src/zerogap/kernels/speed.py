"""Times both kinds of GEMM on this machine: ``numerics = "fast"`` takes the faster one, measured at start-up.

The engine and the trainer are timed apart, since the results differ: a decode step multiplies few rows by weights from
memory, a training step multiplies many rows, forward and backward. Both kinds are timed in turns on the model's own
weights. "exact" wins unless the BLAS is over 5 % faster: exact GEMMs keep the gap at zero at no cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from zerogap.kernels.backend import Compute, Gemm
from zerogap.kernels.choice import backend_of
from zerogap.kernels.linear import linear

_KINDS: tuple[Gemm, ...] = ("exact", "blas")
_REPEATS = 4
_CLEARLY_FASTER = 0.95
"""Below this ratio of times a BLAS is worth a gap above zero; a ratio nearer to 1 is noise."""


@dataclass(frozen=True, kw_only=True)
class GemmTimes:
    """The best time of one pass over the timed weights with each kind."""

    num_rows: int
    num_threads: int
    exact_s: float
    blas_s: float

    @property
    def fastest(self) -> Gemm:
        """The kind to use."""
        return "blas" if self.blas_s < _CLEARLY_FASTER * self.exact_s else "exact"

    def __str__(self) -> str:
        return f"{self.num_rows} rows: exact {1000 * self.exact_s:.1f} ms, BLAS {1000 * self.blas_s:.1f} ms, {self.fastest} taken"


@dataclass(frozen=True, kw_only=True)
class FastGemm:
    """The GEMMs of each side with ``numerics = "fast"``: ``Compute(gemm=side.fastest)``."""

    engine: GemmTimes
    """Forward alone, few rows."""
    trainer: GemmTimes
    """Forward and backward, many rows."""

    def __str__(self) -> str:
        return f"GEMMs timed on {self.engine.num_threads} threads: engine, {self.engine}; trainer, {self.trainer}"


def time_gemm(weights_OI: Sequence[Tensor], *, num_rows: int, with_gradients: bool) -> GemmTimes:  # fmt: skip
    """Multiply random rows by each weight, with each kind of GEMM in turn.

    Args:
        weights_OI: float32 [O, I] of any shapes; together larger than the caches if the real ones are.
        num_rows: rows of every GEMM.
        with_gradients: time the two GEMMs of the backward as well.
    """
    generator = torch.Generator().manual_seed(0)
    rows = {width: torch.randn(num_rows, width, generator=generator) for w in weights_OI for width in w.shape}  # fmt: skip
    seconds: dict[Gemm, list[float]] = {kind: [] for kind in _KINDS}
    for repeat in range(_REPEATS):
        for kind in _KINDS if repeat % 2 == 0 else reversed(_KINDS):
            compute = Compute(gemm=kind)
            start_s = perf_counter()
            for weight_OI in weights_OI:
                _multiply(weight_OI, rows, compute, with_gradients=with_gradients)
            seconds[kind].append(perf_counter() - start_s)
    return GemmTimes(
        num_rows=num_rows,
        num_threads=torch.get_num_threads(),
        exact_s=min(seconds["exact"]),
        blas_s=min(seconds["blas"]),
    )


@torch.no_grad()
def _multiply(
    weight_OI: Tensor, rows: dict[int, Tensor], compute: Compute, *, with_gradients: bool
) -> None:
    grad_TO, x_TI = (rows[width] for width in weight_OI.shape)
    linear(x_TI, weight_OI, compute=compute)
    if with_gradients:
        backend = backend_of(x_TI, weight_OI)
        backend.input_gradient(grad_TO, weight_OI, compute=compute)
        buffer_OI = torch.zeros_like(weight_OI)
        backend.add_weight_gradient_(buffer_OI, grad_TO, x_TI, compute=compute)
