"""Checks on this machine that its GEMMs are batch-invariant, and reports which kernels run.

A row of the forward's GEMMs must have the same bits beside any other rows. Our own GEMMs (AVX2, AVX-512) are
batch-invariant by construction, and the probe checks the compiled code. A BLAS must be so for every number of rows that
is a multiple of 8. MKL is on the processors we know, except for GEMMs of fewer than 10 columns whose inner width is not
divisible by 4. Another BLAS, thread count or shape may fail: the probe measures the model's own shapes at start-up.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from zerogap.kernels.choice import backend_of
from zerogap.kernels.constants import FIXED_TILE, PAGE_SIZE, ROW_MULTIPLE
from zerogap.kernels.linear import linear
from zerogap.kernels.native import native

_ROW_COUNTS = (8, 16, 24, 40, 64, 72, 136, 256, 520)


@dataclass(frozen=True)
class InvarianceProbe:
    """Which GEMM shapes are not batch-invariant: a row's bits depend on the number of rows."""

    num_threads: int
    num_shapes: int
    failures: tuple[tuple[int, int, int], ...]
    """(in features, out features, rows) of each GEMM whose rows differed."""

    @property
    def is_exact(self) -> bool:
        """Whether no shape failed."""
        return not self.failures

    @property
    def examples(self) -> str:
        """The first few failures, for a message; empty if there are none."""
        return ", ".join(f"{i}x{o} at {rows} rows" for i, o, rows in self.failures[:3])


@torch.no_grad()
def probe_batch_invariance(shapes: Iterable[tuple[int, int]]) -> InvarianceProbe:
    """Multiply random rows by a random weight of each (in, out) shape at several row counts and compare bits."""
    generator = torch.Generator().manual_seed(0)
    failures, distinct = [], sorted(set(shapes))
    for num_in, num_out in distinct:
        weight = torch.randn(num_out, num_in, generator=generator)
        x = torch.randn(max(_ROW_COUNTS), num_in, generator=generator)
        whole = linear(x, weight)
        for num_rows in _ROW_COUNTS:
            # The last rows as well: a row's bits must not depend on its place either.
            head, tail = linear(x[:num_rows], weight), linear(x[-num_rows:], weight)
            if not (torch.equal(head, whole[:num_rows]) and torch.equal(tail, whole[-num_rows:])):
                failures.append((num_in, num_out, num_rows))
    return InvarianceProbe(torch.get_num_threads(), len(distinct), tuple(failures))


def ensure_batch_invariance(shapes: Iterable[tuple[int, int]]) -> InvarianceProbe:
    """Probe; if a shape fails, let the BLAS multiply tiles of ``FIXED_TILE`` rows from now on and probe again.

    Returns:
        The last probe. If it still fails, this machine has no batch-invariant GEMM, and the caller must say so.
    """
    shapes, backend = list(shapes), backend_of(torch.empty(0))
    backend.tile = None
    probe = probe_batch_invariance(shapes)
    if not probe.is_exact:
        backend.tile = FIXED_TILE
        probe = probe_batch_invariance(shapes)
    return probe


def kernel_report(head_dim: int | None = None) -> str:
    """One line: which kernels run here, on how many threads, and why the fast ones do not, if so.

    Args:
        head_dim: the model's, if known: attention may have no C++ kernel for it.
    """
    tile = backend_of(torch.empty(0)).tile
    rows = f"multiples of {ROW_MULTIPLE}" if tile is None else f"tiles of {tile}"
    gemm = "GEMM in C++" if native.has_gemm and tile is None else f"BLAS on rows in {rows}"
    threads = f"{torch.get_num_threads()} threads, {gemm}"
    if native.library is None:
        return f"kernels: torch reference, slow ({threads}); {native.why_not}"
    if head_dim is not None and not native.handles_head_dim(head_dim):
        threads += (
            f"; attention in torch, slow: {PAGE_SIZE} does not divide the head dim {head_dim}"
        )
    return f"kernels: native C++ ({threads})"
