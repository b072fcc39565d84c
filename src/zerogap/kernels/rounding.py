"""Rounds values to the nearest bf16 in their own dtype: how a bf16 model runs on a processor without fast bf16 GEMMs.

Such a processor multiplies bf16 an eighth as fast as fp32. A bf16 model here therefore computes in fp32 within each
operation, and rounds its weights and what passes between operations to bf16. ``docs/numerics.md`` lists where. The
backward treats rounding as the identity (a straight-through estimate), as any mixed-precision training does.
"""

import torch
from torch import Tensor

from zerogap.kernels.backend import Backend, Compute
from zerogap.kernels.choice import backend_of


def round_bf16_(x: Tensor) -> Tensor:
    """Round to the nearest bf16 in place, ties to even, and return ``x``; no autograd.

    A value that is too large becomes infinite; NaN stays NaN.
    """
    if not x.is_contiguous():
        return x.copy_(_rounded(backend_of(x), x))
    backend_of(x).round_bf16(x, x)
    return x


def round_bf16(x: Tensor) -> Tensor:
    """The nearest bf16 of each element, in the same dtype and shape; its gradient is that of the identity."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _RoundBf16.apply(x)
    return _rounded(backend_of(x), x)


def rounded(backend: Backend, compute: Compute, x: Tensor) -> Tensor:
    """``x``, or its ``round_bf16`` if ``compute`` rounds."""
    return _rounded(backend, x) if compute.rounds_bf16 else x


def _rounded(backend: Backend, x: Tensor) -> Tensor:
    x = x.detach().contiguous()
    out = torch.empty_like(x)
    backend.round_bf16(x, out)
    return out


class _RoundBf16(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # noqa: ANN001
        return _rounded(backend_of(x), x)

    @staticmethod
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        return grads[0]
