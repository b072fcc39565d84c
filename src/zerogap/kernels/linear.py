"""Batch-invariant linear layers.

``norm_linear`` and ``swiglu_linear`` are a row-wise kernel and the GEMM after it, as one operation. The GEMM's input is
cheap to compute and as wide as a row of activations; kept for the backward of every layer, it would take half of a
step's memory. The backward recomputes it instead, with the same kernel on the same input, so gradients keep their bits.
Without gradients a backend may fuse the two into one kernel, with no tensor between them.
"""

import torch
from torch import Tensor

from zerogap.kernels.backend import PLAIN, Backend, Compute
from zerogap.kernels.choice import backend_of
from zerogap.kernels.gradients import first_order, weight_gradient
from zerogap.kernels.rounding import rounded


def linear(
    x_TI: Tensor,
    weight_OI: Tensor,
    bias_O: Tensor | None = None,
    *,
    residual_TO: Tensor | None = None,
    compute: Compute = PLAIN,
) -> Tensor:
    """``residual + (x @ weight.T + bias)``: [T, I], [O, I] -> [T, O]. A row's bits do not depend on T.

    Args:
        x_TI: rows; kept for the backward. With ``rounds_bf16`` they are rounded first, and again in the backward.
        weight_OI: with ``rounds_bf16`` the caller passes bf16 values here, and as bias and residual; nothing checks it.
        bias_O: added to every row, or None.
        residual_TO: added to the result, or None.
        compute: how to compute. The backward treats rounding as the identity.
    """
    backend = backend_of(x_TI, weight_OI, bias_O, residual_TO)
    if torch.is_grad_enabled():
        return _Linear.apply(backend, compute, x_TI, weight_OI, bias_O, residual_TO)
    return _product(backend, compute, x_TI, weight_OI, bias_O, residual_TO)


def _product(
    backend: Backend, compute: Compute, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, residual_TO: Tensor | None
) -> Tensor:  # fmt: skip
    x_TI = rounded(backend, compute, x_TI)
    return backend.product(x_TI, weight_OI, bias_O, residual_TO, compute=compute)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, compute, x_TI, weight_OI, bias_O, residual_TO):  # noqa: ANN001, ANN205
        ctx.save_for_backward(x_TI, weight_OI)
        ctx.backend, ctx.compute = backend, compute
        return _product(backend, compute, x_TI, weight_OI, bias_O, residual_TO)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        x_TI, weight_OI = ctx.saved_tensors
        backend, compute = ctx.backend, ctx.compute
        needs_x, needs_weight, needs_bias, needs_residual = ctx.needs_input_grad[2:]
        grad_x = grad_weight = None
        if needs_x:
            grad_x = backend.input_gradient(grad_TO, weight_OI, compute=compute)
        if needs_weight:
            x_TI = rounded(backend, compute, x_TI)
            grad_weight = weight_gradient(backend, compute, weight_OI, grad_TO, x_TI)
        grad_bias = grad_TO.sum(0) if needs_bias else None
        return None, None, grad_x, grad_weight, grad_bias, grad_TO if needs_residual else None


def norm_linear(
    x_TD: Tensor,
    norm_D: Tensor,
    weight_OD: Tensor,
    bias_O: Tensor | None = None,
    *,
    eps: float,
    compute: Compute = PLAIN,
) -> Tensor:
    """``linear(rms_norm(x))``: [T, D] -> [T, O], keeping ``x`` and 1 / rms of each row for the backward."""
    backend = backend_of(x_TD, norm_D, weight_OD, bias_O)
    if torch.is_grad_enabled():
        return _NormLinear.apply(backend, compute, x_TD, norm_D, weight_OD, bias_O, eps)
    return backend.norm_product(x_TD, norm_D, weight_OD, bias_O, eps, compute=compute)


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, compute, x_TD, norm_D, weight_OD, bias_O, eps):  # noqa: ANN001, ANN205
        normed_TD, rstd_T = backend.rms_norm(x_TD, norm_D, eps, rounds_bf16=compute.rounds_bf16)
        ctx.save_for_backward(x_TD, norm_D, weight_OD, rstd_T)
        ctx.backend, ctx.compute, ctx.eps = backend, compute, eps
        return backend.product(normed_TD, weight_OD, bias_O, compute=compute)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        x_TD, norm_D, weight_OD, rstd_T = ctx.saved_tensors
        backend, compute = ctx.backend, ctx.compute
        needs_x, needs_norm, needs_weight, needs_bias = ctx.needs_input_grad[2:6]
        grad_x = grad_norm = grad_weight = None
        if needs_weight:
            rounds = compute.rounds_bf16
            normed_TD, _ = backend.rms_norm(x_TD, norm_D, ctx.eps, rounds_bf16=rounds)
            grad_weight = weight_gradient(backend, compute, weight_OD, grad_TO, normed_TD)
            del normed_TD
        grad_bias = grad_TO.sum(0) if needs_bias else None
        if needs_x or needs_norm:
            grad_normed = backend.input_gradient(grad_TO, weight_OD, compute=compute)
            grad_x, grad_norm = backend.rms_norm_backward(
                grad_normed, x_TD, norm_D, rstd_T, needs_weight=needs_norm
            )
        return None, None, grad_x, grad_norm, grad_weight, grad_bias, None


def swiglu_linear(
    gate_up_TF2: Tensor,
    weight_OF: Tensor,
    *,
    residual_TO: Tensor | None = None,
    compute: Compute = PLAIN,
) -> Tensor:
    """``residual + linear(swiglu(gate_up))``: [T, 2F] -> [T, O], keeping only ``gate_up`` for the backward pass."""
    backend = backend_of(gate_up_TF2, weight_OF, residual_TO)
    if torch.is_grad_enabled():
        return _SwigluLinear.apply(backend, compute, gate_up_TF2, weight_OF, residual_TO)
    return backend.swiglu_product(gate_up_TF2, weight_OF, residual_TO, compute=compute)


class _SwigluLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, compute, gate_up_TF2, weight_OF, residual_TO):  # noqa: ANN001, ANN205
        ctx.save_for_backward(gate_up_TF2, weight_OF)
        ctx.backend, ctx.compute = backend, compute
        active_TF = backend.swiglu(gate_up_TF2, rounds_bf16=compute.rounds_bf16)
        return backend.product(active_TF, weight_OF, None, residual_TO, compute=compute)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TO,) = grads
        gate_up_TF2, weight_OF = ctx.saved_tensors
        backend, compute = ctx.backend, ctx.compute
        needs_gate_up, needs_weight, needs_residual = ctx.needs_input_grad[2:]
        grad_gate_up = grad_weight = None
        if needs_weight:
            active_TF = backend.swiglu(gate_up_TF2, rounds_bf16=compute.rounds_bf16)
            grad_weight = weight_gradient(backend, compute, weight_OF, grad_TO, active_TF)
            del active_TF
        if needs_gate_up:
            grad_active = backend.input_gradient(grad_TO, weight_OF, compute=compute)
            grad_gate_up = backend.swiglu_backward(grad_active, gate_up_TF2)
        return None, None, grad_gate_up, grad_weight, grad_TO if needs_residual else None
