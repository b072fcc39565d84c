"""Matrix products whose rows do not depend on how many rows are computed beside them."""

import torch
from torch import Tensor

from zerogap.kernels.constants import ROW_MULTIPLE
from zerogap.kernels.native import native


def pad_rows(x_TI: Tensor) -> Tensor:
    """``x`` with zero rows appended up to a multiple of ``ROW_MULTIPLE``; ``x`` itself if it is one already."""
    missing = -len(x_TI) % ROW_MULTIPLE
    if not missing:
        return x_TI
    padded = x_TI.new_zeros(len(x_TI) + missing, *x_TI.shape[1:])
    padded[: len(x_TI)] = x_TI
    return padded


class RowGemm:
    """``x @ weight.T`` for row counts that are multiples of ``ROW_MULTIPLE``.

    In C++ where the processor has AVX-512: each output adds in one order by construction. Elsewhere on this
    process's BLAS, and ``tile`` is a property of machine, BLAS and thread count, like the choice of kernels:
    None multiplies all rows at once, where the start-up probe finds that a row keeps its bits; a number
    multiplies that many rows at a time, always the same call, where it does not.
    """

    def __init__(self) -> None:
        self.tile: int | None = None

    def __call__(self, x_MI: Tensor, weight_OI: Tensor, out_MO: Tensor | None = None) -> Tensor:
        """[M, I], [O, I] -> [M, O], into ``out_MO`` if given."""
        if out_MO is None:
            out_MO = x_MI.new_empty(len(x_MI), len(weight_OI))
        if self.tile is None and native.handles(x_MI) and native.has_gemm:
            native.gemm(x_MI.contiguous(), weight_OI.contiguous(), out_MO)
            return out_MO
        if self.tile is None or len(x_MI) == 0:
            return torch.mm(x_MI, weight_OI.t(), out=out_MO)
        for begin in range(0, len(x_MI), self.tile):
            rows = x_MI[begin : begin + self.tile]
            padded = rows.new_zeros(self.tile, rows.shape[1])
            padded[: len(rows)] = rows
            out_MO[begin : begin + len(rows)] = torch.mm(padded, weight_OI.t())[: len(rows)]
        return out_MO


row_gemm = RowGemm()
"""The one of this process."""


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:  # noqa: ANN001
        ctx.save_for_backward(x_TI, weight_OI)
        ctx.has_bias = bias_O is not None
        return linear_rows(x_TI, weight_OI, bias_O)

    @staticmethod
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        x_TI, weight_OI = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = torch.mm(grad_TO, weight_OI) if needs_x else None
        grad_weight = torch.mm(grad_TO.t(), x_TI) if needs_weight else None
        grad_bias = grad_TO.sum(0) if ctx.has_bias and needs_bias else None
        return grad_x, grad_weight, grad_bias


def linear_rows(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """The forward alone, without autograd."""
    padded = pad_rows(x_TI)
    out = row_gemm(padded, weight_OI)
    if bias_O is not None:
        # Added afterwards, not as the GEMM's beta: one rounding more, and the same one everywhere.
        out += bias_O
    return out[: len(x_TI)]


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``: [T, I], [O, I] -> [T, O]. A row's bits do not depend on T."""
    if torch.is_grad_enabled():
        return _Linear.apply(x_TI, weight_OI, bias_O)
    return linear_rows(x_TI, weight_OI, bias_O)
