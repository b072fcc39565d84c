"""Values to the nearest bf16, kept as float32: what "bf16" means on a CPU.

Processors without bf16 products compute them an eighth as fast as fp32 ones, so a bf16 model here has its weights and
what passes between its operations rounded to bf16, and computes in fp32 within each operation. ``docs/numerics.md``
lists where. Gradients take no notice of it: rounding counts as the identity (a straight-through estimate), as it does
in any mixed-precision training.
"""

import torch
from torch import Tensor

from zerogap.kernels import reference
from zerogap.kernels.native import native


def round_bf16_(x: Tensor) -> Tensor:
    """Round to the nearest bf16 in place, ties to even, and return ``x``; no autograd.

    Too large becomes infinite, a NaN stays one.
    """
    if native.handles(x) and x.is_contiguous():
        native.round_bf16(x, x)
        return x
    return x.copy_(reference.round_bf16(x))


def round_bf16(x: Tensor) -> Tensor:
    """The nearest bf16 of each element, as float32 of the same shape; its gradient is that of the identity."""
    if torch.is_grad_enabled() and x.requires_grad:
        return _RoundBf16.apply(x)
    if not native.handles(x):
        return reference.round_bf16(x)
    x = x.detach().contiguous()
    out = torch.empty_like(x)
    native.round_bf16(x, out)
    return out


def rounded(x: Tensor, *, is_bf16: bool) -> Tensor:
    """What a kernel of this precision makes of ``x``: itself, or its ``round_bf16``."""
    return round_bf16(x) if is_bf16 else x


class _RoundBf16(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # noqa: ANN001
        return round_bf16(x)

    @staticmethod
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        return grads[0]
