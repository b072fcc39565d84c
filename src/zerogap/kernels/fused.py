"""A row-wise kernel and the matrix product after it, as one operation.

The product's input is cheap to compute and as wide as a row of activations; kept for the backward of
every layer it would be half of a step's memory. Here it is computed again instead: the same kernel on
the same input, so gradients keep their bits. Without gradients the two are one call of C++ where the
product is ours: the same two kernels, and no tensor between them. With ``is_bf16`` both round what they return to
bf16; gradients pass straight through.
"""

import torch
from torch import Tensor

from zerogap.kernels.gradients import first_order, input_gradient, weight_gradient
from zerogap.kernels.linear import linear, row_gemm
from zerogap.kernels.native import native
from zerogap.kernels.rowwise import rms_norm, swiglu


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TD, norm_D, weight_OD, bias_O, eps, is_bf16):  # noqa: ANN001, ANN205
        normed_TD, rstd_T = native.rms_norm(x_TD, norm_D, eps, is_bf16=is_bf16)
        ctx.save_for_backward(x_TD, norm_D, weight_OD, rstd_T)
        ctx.has_bias, ctx.eps, ctx.is_bf16 = bias_O is not None, eps, is_bf16
        return row_gemm(normed_TD, weight_OD, bias_O=bias_O, is_bf16=is_bf16)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        x_TD, norm_D, weight_OD, rstd_T = ctx.saved_tensors
        needs_weight, needs_bias = ctx.needs_input_grad[2:4]
        grad_weight = None
        if needs_weight:
            normed_TD = native.rms_norm(x_TD, norm_D, ctx.eps, is_bf16=ctx.is_bf16)[0]
            grad_weight = weight_gradient(weight_OD, grad_TO, normed_TD)
            del normed_TD
        grad_bias = grad_TO.sum(0) if ctx.has_bias and needs_bias else None
        grad_normed = input_gradient(grad_TO, weight_OD)
        grad_x, grad_norm = native.rms_norm_backward(grad_normed, x_TD, norm_D, rstd_T)
        return grad_x, grad_norm, grad_weight, grad_bias, None, None


def norm_linear(
    x_TD: Tensor,
    norm_D: Tensor,
    weight_OD: Tensor,
    bias_O: Tensor | None = None,
    *,
    eps: float,
    is_bf16: bool = False,
) -> Tensor:
    """``linear(rms_norm(x))``: [T, D] -> [T, O], keeping only ``x`` for the backward pass."""
    if not torch.is_grad_enabled() and row_gemm.is_native(x_TD):
        return native.norm_gemm_nt(x_TD, norm_D, weight_OD, bias_O, eps, is_bf16=is_bf16)
    if native.handles(x_TD) and torch.is_grad_enabled():
        return _NormLinear.apply(x_TD, norm_D, weight_OD, bias_O, eps, is_bf16)
    normed_TD = rms_norm(x_TD, norm_D, eps, is_bf16=is_bf16)
    return linear(normed_TD, weight_OD, bias_O, is_bf16=is_bf16)


class _SwigluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up_TF2, weight_OF, residual_TO, is_bf16):  # noqa: ANN001, ANN205
        ctx.save_for_backward(gate_up_TF2, weight_OF)
        ctx.is_bf16 = is_bf16
        active_TF = native.swiglu(gate_up_TF2, is_bf16=is_bf16)
        return row_gemm(active_TF, weight_OF, residual_MO=residual_TO, is_bf16=is_bf16)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        gate_up_TF2, weight_OF = ctx.saved_tensors
        _, needs_weight, needs_residual, _ = ctx.needs_input_grad
        grad_weight = None
        if needs_weight:
            active_TF = native.swiglu(gate_up_TF2, is_bf16=ctx.is_bf16)
            grad_weight = weight_gradient(weight_OF, grad_TO, active_TF)
            del active_TF
        grad_gate_up = native.swiglu_backward(input_gradient(grad_TO, weight_OF), gate_up_TF2)
        return grad_gate_up, grad_weight, grad_TO if needs_residual else None, None


def swiglu_linear(
    gate_up_TF2: Tensor,
    weight_OF: Tensor,
    *,
    residual_TO: Tensor | None = None,
    is_bf16: bool = False,
) -> Tensor:
    """``residual + linear(swiglu(gate_up))``: [T, 2F] -> [T, O], keeping only ``gate_up`` for the backward pass."""
    if not torch.is_grad_enabled() and row_gemm.is_native(gate_up_TF2):
        return native.swiglu_gemm_nt(gate_up_TF2, weight_OF, residual_TO, is_bf16=is_bf16)
    if native.handles(gate_up_TF2) and torch.is_grad_enabled():
        return _SwigluLinear.apply(gate_up_TF2, weight_OF, residual_TO, is_bf16)
    active_TF = swiglu(gate_up_TF2, is_bf16=is_bf16)
    return linear(active_TF, weight_OF, residual_TO=residual_TO, is_bf16=is_bf16)
