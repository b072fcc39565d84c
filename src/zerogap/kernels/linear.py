"""Matrix products whose rows do not depend on how many rows are computed beside them."""

import torch
from torch import Tensor

from zerogap.kernels.constants import ROW_MULTIPLE
from zerogap.kernels.gradients import first_order, input_gradient, weight_gradient
from zerogap.kernels.native import native


class RowGemm:
    """``x @ weight.T`` for any number of rows.

    In C++ where the processor has AVX2 or AVX-512: each output adds in one order by construction. Elsewhere on this
    process's BLAS, whose rows are padded to a multiple of ``ROW_MULTIPLE``, and ``tile`` is a property of machine,
    BLAS and thread count, like the choice of kernels: None multiplies all rows at once, where the start-up probe
    finds that a row keeps its bits; a number multiplies that many rows at a time, always the same call, where
    it does not.
    """

    def __init__(self) -> None:
        self.tile: int | None = None

    def __call__(
        self,
        x_MI: Tensor,
        weight_OI: Tensor,
        out_MO: Tensor | None = None,
        *,
        bias_O: Tensor | None = None,
        residual_MO: Tensor | None = None,
    ) -> Tensor:
        """``residual + (x @ weight.T + bias)``, into ``out_MO`` if given: [M, I], [O, I] -> [M, O].

        Bias and residual are added to the finished product, one rounding each, the same ones everywhere.
        """
        if out_MO is None:
            out_MO = x_MI.new_empty(len(x_MI), len(weight_OI))
        if self.is_native(x_MI):
            native.gemm_nt(
                x_MI.contiguous(), weight_OI.contiguous(), out_MO, bias_O,
                None if residual_MO is None else residual_MO.contiguous(),
            )  # fmt: skip
            return out_MO
        self._blas(x_MI, weight_OI, out_MO)
        if bias_O is not None:
            out_MO += bias_O
        return out_MO if residual_MO is None else out_MO.add_(residual_MO)

    def is_native(self, x_MI: Tensor) -> bool:
        """Whether our own product takes this tensor."""
        return self.tile is None and native.multiplies(x_MI)

    def _blas(self, x_MI: Tensor, weight_OI: Tensor, out_MO: Tensor) -> Tensor:
        if self.tile is None and len(x_MI) % ROW_MULTIPLE == 0:
            return torch.mm(x_MI, weight_OI.t(), out=out_MO)
        tile = self.tile or len(x_MI) + -len(x_MI) % ROW_MULTIPLE
        for begin in range(0, len(x_MI), tile):
            rows = x_MI[begin : begin + tile]
            padded = rows.new_zeros(tile, rows.shape[1])
            padded[: len(rows)] = rows
            out_MO[begin : begin + len(rows)] = torch.mm(padded, weight_OI.t())[: len(rows)]
        return out_MO


row_gemm = RowGemm()
"""The one of this process."""


def product_choice() -> tuple[object, ...]:
    """What decides which kernels multiply; equal while the choice is the same."""
    return (id(native.library), row_gemm.tile)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TI, weight_OI, bias_O, residual_TO):  # noqa: ANN001, ANN205
        ctx.save_for_backward(x_TI, weight_OI)
        ctx.has_bias = bias_O is not None
        return linear_rows(x_TI, weight_OI, bias_O, residual_TO)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        x_TI, weight_OI = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad
        grad_x = input_gradient(grad_TO, weight_OI) if needs_x else None
        grad_weight = weight_gradient(weight_OI, grad_TO, x_TI) if needs_weight else None
        grad_bias = grad_TO.sum(0) if ctx.has_bias and needs_bias else None
        return grad_x, grad_weight, grad_bias, grad_TO if needs_residual else None


def linear_rows(
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    residual_TO: Tensor | None = None,
) -> Tensor:
    """The forward alone, without autograd."""
    return row_gemm(x_TI, weight_OI, bias_O=bias_O, residual_MO=residual_TO)


def linear(
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    *,
    residual_TO: Tensor | None = None,
) -> Tensor:
    """``residual + (x @ weight.T + bias)``: [T, I], [O, I] -> [T, O]. A row's bits do not depend on T."""
    if torch.is_grad_enabled():
        return _Linear.apply(x_TI, weight_OI, bias_O, residual_TO)
    return linear_rows(x_TI, weight_OI, bias_O, residual_TO)
