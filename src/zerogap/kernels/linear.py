"""Matrix products whose rows do not depend on how many rows are computed beside them."""

import torch
from torch import Tensor

from zerogap.kernels.constants import ROW_MULTIPLE
from zerogap.kernels.gradients import first_order, input_gradient, weight_gradient
from zerogap.kernels.native import native
from zerogap.kernels.products import chosen_products, multiplies_own
from zerogap.kernels.rounding import round_bf16_, rounded


class RowGemm:
    """``x @ weight.T`` for any number of rows.

    In C++ where the processor has AVX2 or AVX-512: each output adds in one order by construction. Elsewhere on this
    process's BLAS, whose rows are padded to a multiple of ``ROW_MULTIPLE``, and ``tile`` is a property of machine,
    BLAS and thread count, like the choice of kernels: None multiplies all rows at once, where the start-up probe
    finds that a row keeps its bits; a number multiplies that many rows at a time, always the same call, where
    it does not. Within ``products("blas")`` the BLAS gets the rows as they are.
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
        is_bf16: bool = False,
    ) -> Tensor:
        """``residual + (x @ weight.T + bias)``, into ``out_MO`` if given: [M, I], [O, I] -> [M, O].

        Bias and residual are added to the finished product, one rounding each, the same ones everywhere; then the sum
        is rounded to bf16 if asked.
        """
        if out_MO is None:
            out_MO = x_MI.new_empty(len(x_MI), len(weight_OI))
        if self.is_native(x_MI):
            native.gemm_nt(
                x_MI.contiguous(), weight_OI.contiguous(), out_MO, bias_O,
                None if residual_MO is None else residual_MO.contiguous(), is_bf16=is_bf16,
            )  # fmt: skip
            return out_MO
        self._blas(x_MI, weight_OI, out_MO)
        if bias_O is not None:
            out_MO += bias_O
        if residual_MO is not None:
            out_MO += residual_MO
        return round_bf16_(out_MO) if is_bf16 else out_MO

    def is_native(self, x_MI: Tensor) -> bool:
        """Whether our own product takes this tensor."""
        return self.tile is None and multiplies_own(x_MI)

    def _blas(self, x_MI: Tensor, weight_OI: Tensor, out_MO: Tensor) -> Tensor:
        takes_any = self.tile is None and len(x_MI) % ROW_MULTIPLE == 0
        if takes_any or chosen_products() == "blas":
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
    return (id(native.library), row_gemm.tile, chosen_products())


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TI, weight_OI, bias_O, residual_TO, is_bf16):  # noqa: ANN001, ANN205
        ctx.save_for_backward(x_TI, weight_OI)
        ctx.has_bias, ctx.is_bf16 = bias_O is not None, is_bf16
        return linear_rows(x_TI, weight_OI, bias_O, residual_TO, is_bf16=is_bf16)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        x_TI, weight_OI = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[:4]
        grad_x = input_gradient(grad_TO, weight_OI) if needs_x else None
        grad_weight = None
        if needs_weight:
            grad_weight = weight_gradient(weight_OI, grad_TO, rounded(x_TI, is_bf16=ctx.is_bf16))
        grad_bias = grad_TO.sum(0) if ctx.has_bias and needs_bias else None
        return grad_x, grad_weight, grad_bias, grad_TO if needs_residual else None, None


def linear_rows(
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    residual_TO: Tensor | None = None,
    *,
    is_bf16: bool = False,
) -> Tensor:
    """The forward alone, without autograd."""
    x_TI = rounded(x_TI, is_bf16=is_bf16)
    return row_gemm(x_TI, weight_OI, bias_O=bias_O, residual_MO=residual_TO, is_bf16=is_bf16)


def linear(
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    *,
    residual_TO: Tensor | None = None,
    is_bf16: bool = False,
) -> Tensor:
    """``residual + (x @ weight.T + bias)``: [T, I], [O, I] -> [T, O]. A row's bits do not depend on T.

    Args:
        x_TI: rows; with ``is_bf16`` they are rounded first, and again in the backward rather than kept.
        weight_OI: bf16 values with ``is_bf16``: the caller's word. Bias and residual alike.
        bias_O: added by column, or None.
        residual_TO: added by row, or None.
        is_bf16: round what enters and what leaves to bf16; the gradient passes straight through.
    """
    if torch.is_grad_enabled():
        return _Linear.apply(x_TI, weight_OI, bias_O, residual_TO, is_bf16)
    return linear_rows(x_TI, weight_OI, bias_O, residual_TO, is_bf16=is_bf16)
