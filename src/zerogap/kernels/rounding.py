"""Values to the nearest bf16, kept in their dtype: what "bf16" means where a processor has no fast bf16 products.

Such processors compute them an eighth as fast as fp32 ones, so a bf16 model here has its weights and
what passes between its operations rounded to bf16, and computes in fp32 within each operation. ``docs/numerics.md``
lists where. Gradients take no notice of it: rounding counts as the identity (a straight-through estimate), as it does
in any mixed-precision training.
"""

import torch
from torch import Tensor

from zerogap.kernels.backend import Backend, Compute
from zerogap.kernels.choice import backend_of


def round_bf16_(x: Tensor) -> Tensor:
    """Round to the nearest bf16 in place, ties to even, and return ``x``; no autograd.

    Too large becomes infinite, a NaN stays one.
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
    """What a kernel that computes so makes of ``x``: itself, or its ``round_bf16``."""
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
