"""The formula of every kernel in plain torch: the reference for the fast kernels, and what ``torch_backend`` computes.

Differentiable by autograd, on the device of the arguments. Batch-invariant like the fast kernels: each reduction runs
over a fixed extent (a row, a page, a vocabulary chunk) in a fixed order, however many rows are computed beside it. It
is slow; ``kernels.kernel_report()`` says when it runs.

Shapes: T packed tokens, D model dim, N query heads, K key/value heads, H head dim, F feed-forward dim,
P pages, S slots per page (16), B sequences, R rows of the head, V vocabulary.
"""

import torch
from torch import Tensor

from zerogap.kernels.constants import PAGE_SIZE
from zerogap.kernels.layout import AttentionPlan


def round_bf16(x: Tensor) -> Tensor:
    """Each element to the nearest bf16, ties to even, as float32; detached.

    Integer arithmetic on the bits: torch's own conversion gives a NaN other bits alone than among eight numbers.
    """
    bits = x.detach().float().contiguous().view(torch.int32)
    nearest = bits + 0x7FFF + ((bits >> 16) & 1)
    # A NaN stays NaN (quiet, sign and upper bits kept); adding to its bits could turn it into infinity.
    chosen = torch.where(x.detach().isnan(), bits | 0x400000, nearest)
    return (chosen & -0x10000).view(torch.float32).view(x.shape)


def rms_norm(x_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, and 1 / sqrt(...) with a last dimension of 1."""
    rstd = torch.rsqrt(x_TD.pow(2).mean(-1, keepdim=True) + eps)
    return x_TD * rstd * weight_D, rstd


def swiglu(gate_up_TF2: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[gate | up]``."""
    gate_TF, up_TF = gate_up_TF2.chunk(2, dim=-1)
    # Not torch's silu: its vectorised loop and scalar tail round differently, depending on an element's place.
    return gate_TF / (1 + torch.exp(-gate_TF.clamp(min=-88.0))) * up_TF


def sigmoid(gate: Tensor) -> Tensor:
    """1 / (1 + exp(-gate)), with an exp that rounds the same at any place."""
    # Below -88 the exp would be infinite, and the gradient 0 * infinity.
    return 1 / (1 + torch.exp(-gate.clamp(min=-88.0)))


def rope_tables(inv_freq_h: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position * frequency, [T, h] each."""
    # A vectorised cosine may round differently depending on an element's place. In float64 that changes the last of 53
    # bits, of which float32 keeps 24.
    angles = (positions_T.float()[:, None] * inv_freq_h.float()).double()
    return angles.cos().to(inv_freq_h.dtype), angles.sin().to(inv_freq_h.dtype)


def rotate(x_TNH: Tensor, cos_Th: Tensor, sin_Th: Tensor) -> Tensor:
    """Rotary embedding in the rotate-half layout: pairs are (i, i + H/2)."""
    first, second = x_TNH.chunk(2, dim=-1)
    cos, sin = cos_Th[:, None], sin_Th[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Split ``[q | k | v]``, normalise q and k per head if norms are given, rotate q and k."""
    num_rows, head_dim = len(qkv_TE), 2 * cos_Th.shape[1]
    heads = qkv_TE.view(num_rows, num_heads + 2 * num_kv_heads, head_dim)
    q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm_H is not None and k_norm_H is not None:
        (q, _), (k, _) = rms_norm(q, q_norm_H, eps), rms_norm(k, k_norm_H, eps)
    return rotate(q, cos_Th, sin_Th), rotate(k, cos_Th, sin_Th), v.contiguous()


def attention_over_pages(
    q_TNH: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, plan: AttentionPlan, *, scale: float
) -> Tensor:
    """Each row attends to keys ``[0, position]`` of its sequence, page by page; position -1 gives zeros."""
    num_rows, num_heads, head_dim = q_TNH.shape
    num_kv_heads = k_PKHS.shape[1]
    q_TKGH = q_TNH.view(num_rows, num_kv_heads, num_heads // num_kv_heads, head_dim)
    row_position_T, num_pages = plan.row_position_T, plan.num_pages_read if num_rows else 0
    offsets_S = torch.arange(PAGE_SIZE, device=q_TNH.device)
    first_key_P = PAGE_SIZE * torch.arange(num_pages, device=q_TNH.device)
    is_read_TP = first_key_P <= row_position_T[:, None]
    pages_TP = plan.page_table_BP.long()[plan.row_sequence_T.long(), :num_pages]
    pages_TP = torch.where(is_read_TP, pages_TP, 0)
    scores, hidden = [], []
    # index_select, not [...]: the gradient of indexing adds in an order that depends on thread timing.
    for page in range(num_pages):
        is_hidden_TS = (page * PAGE_SIZE + offsets_S)[None, :] > row_position_T[:, None]
        # Hidden slots may hold NaN, and weight 0 would not remove it: 0 * NaN is NaN.
        k_TKHS = k_PKHS.index_select(0, pages_TP[:, page]).masked_fill(
            is_hidden_TS[:, None, None, :], 0.0
        )
        score = (q_TKGH.unsqueeze(-1) * k_TKHS.unsqueeze(2)).sum(3) * scale
        scores.append(score.masked_fill(is_hidden_TS[:, None, None, :], -torch.inf))
        hidden.append(is_hidden_TS)
    if not scores:
        return torch.zeros_like(q_TNH)
    is_padding_T11 = (row_position_T < 0)[:, None, None]
    peak = (
        torch.stack([s.amax(-1) for s in scores]).amax(0).detach().masked_fill(is_padding_T11, 0.0)
    )
    mass = torch.zeros_like(peak)
    out = torch.zeros_like(q_TKGH)
    for page, score in enumerate(scores):
        weight = torch.exp(score - peak.unsqueeze(-1))
        mass = mass + weight.sum(-1)
        v_TKSH = v_PKSH.index_select(0, pages_TP[:, page]).masked_fill(
            hidden[page][:, None, :, None], 0.0
        )
        out = out + (weight.unsqueeze(-1) * v_TKSH.unsqueeze(2)).sum(3)
    mass = mass.masked_fill(is_padding_T11, 1.0)
    return (out / mass.unsqueeze(-1)).view(num_rows, num_heads, head_dim)


def chunk_statistics(scaled_RC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(max, sum of exp(z - max), sum of exp(z - max) * (z - max)) of one vocabulary chunk of z = logits / T."""
    peak = scaled_RC.detach().amax(-1)
    shifted = scaled_RC - _finite_base(peak).unsqueeze(-1)
    weight = torch.exp(shifted)
    moment = torch.where(weight > 0, weight * shifted, torch.zeros_like(weight))
    return peak, weight.sum(-1), moment.sum(-1)


def merge_statistics(
    a: tuple[Tensor, Tensor, Tensor], b: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Statistics of two chunks together; a comes before b."""
    peak = torch.maximum(a[0], b[0])
    base = _finite_base(peak)
    shift_a, shift_b = a[0] - base, b[0] - base
    scale_a, scale_b = torch.exp(shift_a), torch.exp(shift_b)
    # exp(-inf) * -inf is NaN: an empty side contributes nothing.
    carried_a = torch.where(
        scale_a > 0, scale_a * (a[2] + a[1] * shift_a.clamp(min=-1e30)), torch.zeros_like(peak)
    )
    carried_b = torch.where(
        scale_b > 0, scale_b * (b[2] + b[1] * shift_b.clamp(min=-1e30)), torch.zeros_like(peak)
    )
    return peak, scale_a * a[1] + scale_b * b[1], carried_a + carried_b


def _finite_base(peak: Tensor) -> Tensor:
    """The number to subtract before exp: the peak, or 0 where all is -inf, since -inf - -inf is NaN."""
    return peak.masked_fill(peak == -torch.inf, 0.0)
