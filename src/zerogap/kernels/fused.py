"""A row-wise kernel and the matrix product after it, as one operation.

The product's input is cheap to compute and as wide as a row of activations; kept for the backward of
every layer it would be half of a step's memory. Here it is computed again instead: the same kernel on
the same input, so gradients keep their bits. Without gradients the two are one call of C++ where the
product is ours: the same two kernels, and no tensor between them.
"""

import torch
from torch import Tensor

from zerogap.kernels.gradients import first_order, input_gradient, weight_gradient
from zerogap.kernels.linear import linear, linear_rows, row_gemm
from zerogap.kernels.native import native
from zerogap.kernels.rowwise import rms_norm, swiglu


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TD, norm_D, weight_OD, bias_O, eps):  # noqa: ANN001, ANN205
        normed_TD, rstd_T = native.rms_norm(x_TD, norm_D, eps)
        ctx.save_for_backward(x_TD, norm_D, weight_OD, rstd_T)
        ctx.has_bias, ctx.eps = bias_O is not None, eps
        return linear_rows(normed_TD, weight_OD, bias_O)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        x_TD, norm_D, weight_OD, rstd_T = ctx.saved_tensors
        needs_weight, needs_bias = ctx.needs_input_grad[2:4]
        grad_weight = None
        if needs_weight:
            normed_TD = native.rms_norm(x_TD, norm_D, ctx.eps)[0]
            grad_weight = weight_gradient(weight_OD, grad_TO, normed_TD)
            del normed_TD
        grad_bias = grad_TO.sum(0) if ctx.has_bias and needs_bias else None
        grad_normed = input_gradient(grad_TO, weight_OD)
        grad_x, grad_norm = native.rms_norm_backward(grad_normed, x_TD, norm_D, rstd_T)
        return grad_x, grad_norm, grad_weight, grad_bias, None


def norm_linear(
    x_TD: Tensor, norm_D: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None, *, eps: float
) -> Tensor:
    """``linear(rms_norm(x))``: [T, D] -> [T, O], keeping only ``x`` for the backward pass."""
    if not torch.is_grad_enabled() and row_gemm.is_native(x_TD):
        return native.norm_gemm_nt(x_TD, norm_D, weight_OD, bias_O, eps)
    if native.handles(x_TD) and torch.is_grad_enabled():
        return _NormLinear.apply(x_TD, norm_D, weight_OD, bias_O, eps)
    return linear(rms_norm(x_TD, norm_D, eps), weight_OD, bias_O)


class _SwigluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up_TF2, weight_OF, residual_TO):  # noqa: ANN001, ANN205
        ctx.save_for_backward(gate_up_TF2, weight_OF)
        return linear_rows(native.swiglu(gate_up_TF2), weight_OF, None, residual_TO)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        gate_up_TF2, weight_OF = ctx.saved_tensors
        _, needs_weight, needs_residual = ctx.needs_input_grad
        grad_weight = None
        if needs_weight:
            grad_weight = weight_gradient(weight_OF, grad_TO, native.swiglu(gate_up_TF2))
        grad_gate_up = native.swiglu_backward(input_gradient(grad_TO, weight_OF), gate_up_TF2)
        return grad_gate_up, grad_weight, grad_TO if needs_residual else None


def swiglu_linear(
    gate_up_TF2: Tensor, weight_OF: Tensor, *, residual_TO: Tensor | None = None
) -> Tensor:
    """``residual + linear(swiglu(gate_up))``: [T, 2F] -> [T, O], keeping only ``gate_up`` for the backward pass."""
    if not torch.is_grad_enabled() and row_gemm.is_native(gate_up_TF2):
        return native.swiglu_gemm_nt(gate_up_TF2, weight_OF, residual_TO)
    if native.handles(gate_up_TF2) and torch.is_grad_enabled():
        return _SwigluLinear.apply(gate_up_TF2, weight_OF, residual_TO)
    return linear(swiglu(gate_up_TF2), weight_OF, residual_TO=residual_TO)
