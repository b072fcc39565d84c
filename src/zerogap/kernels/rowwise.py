"""Row-wise kernels: normalisation, rotary embedding, gated activation."""

import torch
from torch import Tensor

from zerogap.kernels.backend import PLAIN, Compute
from zerogap.kernels.choice import backend_of
from zerogap.kernels.gradients import first_order


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, compute, x_TD, weight_D, eps):  # noqa: ANN001, ANN205
        y, rstd = backend.rms_norm(x_TD, weight_D, eps, rounds_bf16=compute.rounds_bf16)
        ctx.save_for_backward(x_TD, weight_D, rstd)
        ctx.backend = backend
        return y

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TD,) = grads
        needs_weight = ctx.needs_input_grad[3]
        grad_x, grad_weight = ctx.backend.rms_norm_backward(
            grad_TD, *ctx.saved_tensors, needs_weight=needs_weight
        )
        return None, None, grad_x, grad_weight, None


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float, *, compute: Compute = PLAIN) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension (Zhang and Sennrich, 2019). [T, D] -> [T, D].

    Keeps ``x`` and 1 / rms of each row for the backward. Here and below the backward treats rounding as the identity.
    """
    backend = backend_of(x_TD, weight_D)
    if torch.is_grad_enabled():
        return _RmsNorm.apply(backend, compute, x_TD, weight_D, eps)
    return backend.rms_norm(x_TD, weight_D, eps, rounds_bf16=compute.rounds_bf16)[0]


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, compute, gate_up_TF2):  # noqa: ANN001, ANN205
        ctx.save_for_backward(gate_up_TF2)
        ctx.backend = backend
        return backend.swiglu(gate_up_TF2, rounds_bf16=compute.rounds_bf16)

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        (grad_TF,) = grads
        return None, None, ctx.backend.swiglu_backward(grad_TF, *ctx.saved_tensors)


def swiglu(gate_up_TF2: Tensor, *, compute: Compute = PLAIN) -> Tensor:
    """``silu(gate) * up`` of ``[gate | up]`` (Shazeer, 2020). [T, 2F] -> [T, F]. Keeps its input for the backward."""
    backend = backend_of(gate_up_TF2)
    if torch.is_grad_enabled():
        return _Swiglu.apply(backend, compute, gate_up_TF2)
    return backend.swiglu(gate_up_TF2, rounds_bf16=compute.rounds_bf16)


def rope_tables(inv_freq_h: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * frequency: float32 [h], int64 [T] -> two float32 [T, h], h = H / 2."""
    return backend_of(inv_freq_h, positions_T).rope_tables(inv_freq_h, positions_T)


class _QkvRope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, backend, compute, qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, heads, eps):  # noqa: ANN001, ANN205
        # Without norms the backward only undoes the rotation, which does not need the input.
        kept_TE = None if q_norm_H is None else qkv_TE
        ctx.save_for_backward(kept_TE, cos_Th, sin_Th, q_norm_H, k_norm_H)
        ctx.backend, ctx.eps = backend, eps
        return backend.qkv_rope(
            qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, *heads, eps, rounds_bf16=compute.rounds_bf16
        )

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        grad_qkv, *grad_norms = ctx.backend.qkv_rope_backward(
            *grads, *ctx.saved_tensors, ctx.eps, needs_norms=any(ctx.needs_input_grad[5:7])
        )
        return None, None, grad_qkv, None, None, *grad_norms, None, None


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
    compute: Compute = PLAIN,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one layer; q and k are normalised per head if norms are given (Qwen3), then rotated.

    Args:
        qkv_TE: [T, (N + 2K) * H], heads of ``[q | k | v]``; kept for the backward if there are norms.
        cos_Th: [T, H/2] from ``rope_tables``.
        sin_Th: [T, H/2] from ``rope_tables``.
        q_norm_H: weight of the per-head RMSNorm of q, or None; give both norms or neither.
        k_norm_H: the same for k.
        num_heads: N.
        num_kv_heads: K.
        eps: of the norms.
        compute: how to compute; q, k and v are rounded if asked.

    Returns:
        q [T, N, H], k [T, K, H], v [T, K, H], contiguous.
    """
    backend = backend_of(qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H)
    heads = num_heads, num_kv_heads
    if torch.is_grad_enabled():
        return _QkvRope.apply(
            backend, compute, qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, heads, eps
        )
    return backend.qkv_rope(
        qkv_TE, cos_Th, sin_Th, q_norm_H, k_norm_H, *heads, eps, rounds_bf16=compute.rounds_bf16
    )
