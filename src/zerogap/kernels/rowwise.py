"""Kernels that work on one row at a time: normalisation, rotary embedding, gated activation."""

import torch
from torch import Tensor

from zerogap.kernels import reference
from zerogap.kernels.gradients import first_order
from zerogap.kernels.native import native
from zerogap.kernels.rounding import rounded


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x_TD, weight_D, eps, is_bf16):  # noqa: ANN001, ANN205
        y, rstd = native.rms_norm(x_TD, weight_D, eps, is_bf16=is_bf16)
        ctx.save_for_backward(x_TD, weight_D, rstd)
        return y

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TD,) = grads
        return (*native.rms_norm_backward(grad_TD, *ctx.saved_tensors), None, None)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, *, is_bf16: bool = False) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang and Sennrich, 2019). [T, D] -> [T, D].

    Here and below, ``is_bf16`` rounds what is returned to bf16; the gradient passes straight through.
    """
    if not native.handles(x_TD):
        return rounded(reference.rms_norm(x_TD, weight_D, eps), is_bf16=is_bf16)
    if not torch.is_grad_enabled():
        return native.rms_norm(x_TD, weight_D, eps, is_bf16=is_bf16)[0]
    return _RmsNorm.apply(x_TD, weight_D, eps, is_bf16)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up_TF2, is_bf16):  # noqa: ANN001, ANN205
        ctx.save_for_backward(gate_up_TF2)
        return native.swiglu(gate_up_TF2, is_bf16=is_bf16)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TF,) = grads
        return native.swiglu_backward(grad_TF, *ctx.saved_tensors), None


def swiglu(gate_up_TF2: Tensor, *, is_bf16: bool = False) -> Tensor:
    """``silu(gate) * up`` of ``[gate | up]`` (Shazeer, 2020). [T, 2F] -> [T, F]."""
    if not native.handles(gate_up_TF2):
        return rounded(reference.swiglu(gate_up_TF2), is_bf16=is_bf16)
    if not torch.is_grad_enabled():
        return native.swiglu(gate_up_TF2, is_bf16=is_bf16)
    return _Swiglu.apply(gate_up_TF2, is_bf16)


def rope_tables(inv_freq_h: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * frequency: float32 [h], int64 [T] -> two float32 [T, h], h = H / 2."""
    if native.handles(inv_freq_h):
        return native.rope_tables(inv_freq_h, positions_T)
    return reference.rope_tables(inv_freq_h, positions_T)


class _QkvRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, heads, eps, is_bf16):  # noqa: ANN001, ANN205
        num_heads, num_kv_heads = heads
        q, k, v = native.qkv_rope(
            qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, num_heads, num_kv_heads, eps, is_bf16=is_bf16
        )  # fmt: skip
        # Without a norm the rotation alone is undone, and the input is not needed for that.
        ctx.save_for_backward(
            None if q_norm_H is None else qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H
        )
        ctx.eps = eps
        return q, k, v

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        grad_q, grad_k, grad_v = grads
        qkv, cos, sin, q_norm, k_norm = ctx.saved_tensors
        grad_qkv, grad_q_norm, grad_k_norm = native.qkv_rope_backward(
            grad_q, grad_k, grad_v, qkv, cos, sin, q_norm, k_norm, ctx.eps
        )
        return grad_qkv, None, None, grad_q_norm, grad_k_norm, None, None, None


def qkv_rope(
    qkv_TE: Tensor,
    cos_Th: Tensor,
    sin_Th: Tensor,
    q_norm_H: Tensor | None,
    k_norm_H: Tensor | None,
    *,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    is_bf16: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one layer, q and k normalised per head if asked (Qwen3) and rotated.

    Args:
        qkv_TE: [T, (N + 2K) * H], heads of ``[q | k | v]``.
        cos_Th: [T, H/2] from ``rope_tables``; sin_Th alike.
        sin_Th: see cos_Th.
        q_norm_H: weight of the per-head RMSNorm of q, or None; both or neither.
        k_norm_H: the same for k.
        num_heads: N.
        num_kv_heads: K.
        eps: of the norms.
        is_bf16: round q, k and v to bf16.

    Returns:
        q [T, N, H], k [T, K, H], v [T, K, H], contiguous.
    """
    heads = num_heads, num_kv_heads
    if not native.handles(qkv_TE):
        q, k, v = reference.qkv_rope(
            qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H,
            num_heads=num_heads, num_kv_heads=num_kv_heads, eps=eps,
        )  # fmt: skip
        return rounded(q, is_bf16=is_bf16), rounded(k, is_bf16=is_bf16), rounded(v, is_bf16=is_bf16)
    if not torch.is_grad_enabled():
        return native.qkv_rope(
            qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, *heads, eps, is_bf16=is_bf16
        )
    return _QkvRope.apply(qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, heads, eps, is_bf16)
