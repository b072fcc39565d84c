"""Every kernel in plain torch, on any device and in any floating dtype: always right, rarely the fastest.

The forward formulas are in ``reference``; this file adds the backward of each, and GEMMs. Nothing waits for the device,
and no tensor is created on another device. fp16 and bf16 tensors are computed in fp32; results are rounded once.
"""

import torch
from torch import Tensor
from torch.nn import functional

from zerogap.kernels import reference
from zerogap.kernels.backend import Compute, SamplingRows
from zerogap.kernels.constants import PAGE_SIZE, ROW_MULTIPLE, VOCAB_CHUNK
from zerogap.kernels.layout import AttentionPlan, PackedLayout
from zerogap.kernels.reference_sampling import draw, edited

_HALF = (torch.float16, torch.bfloat16)


def _wide(x: Tensor) -> Tensor:
    """``x`` in the dtype that operations compute in."""
    return x.float() if x.dtype in _HALF else x


class TorchBackend:
    """A ``Backend`` for any tensor.

    ``tile`` fits the BLAS of this machine. None multiplies all rows at once, padded to a multiple of ``ROW_MULTIPLE``:
    the start-up probe found that batch-invariant. A number multiplies that many rows per call, always the same shape.
    """

    name = "torch"

    def __init__(self) -> None:
        self.tile: int | None = None

    def takes(self, tensor: Tensor) -> bool:
        """Any."""
        return tensor.is_floating_point()

    # ------------------------------------------------------------ GEMMs

    def product(
        self, x_MI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, residual_MO: Tensor | None = None,
        out_MO: Tensor | None = None, *, compute: Compute,
    ) -> Tensor:  # fmt: skip
        """By torch's BLAS, with rows padded or in tiles."""
        if out_MO is None:
            out_MO = x_MI.new_empty(len(x_MI), len(weight_OI))
        elif out_MO.dtype != x_MI.dtype:
            x_MI, weight_OI = x_MI.to(out_MO.dtype), weight_OI.to(out_MO.dtype)
        self._multiply(x_MI, weight_OI, out_MO, compute)
        if bias_O is not None:
            out_MO += bias_O
        if residual_MO is not None:
            out_MO += residual_MO
        if compute.rounds_bf16:
            self.round_bf16(out_MO, out_MO)
        return out_MO

    def _multiply(self, x_MI: Tensor, weight_OI: Tensor, out_MO: Tensor, compute: Compute) -> None:
        takes_any = self.tile is None and len(x_MI) % ROW_MULTIPLE == 0
        if takes_any or compute.gemm == "blas":
            torch.mm(x_MI, weight_OI.t(), out=out_MO)
            return
        tile = self.tile or len(x_MI) + -len(x_MI) % ROW_MULTIPLE
        for begin in range(0, len(x_MI), tile):
            rows = x_MI[begin : begin + tile]
            padded = rows.new_zeros(tile, rows.shape[1])
            padded[: len(rows)] = rows
            out_MO[begin : begin + len(rows)] = torch.mm(padded, weight_OI.t())[: len(rows)]

    def norm_product(
        self, x_TD: Tensor, norm_D: Tensor, weight_OD: Tensor, bias_O: Tensor | None, eps: float, *, compute: Compute
    ) -> Tensor:  # fmt: skip
        """One after the other."""
        normed_TD, _ = self.rms_norm(x_TD, norm_D, eps, rounds_bf16=compute.rounds_bf16)
        return self.product(normed_TD, weight_OD, bias_O, compute=compute)

    def swiglu_product(
        self,
        gate_up_TF2: Tensor,
        weight_OF: Tensor,
        residual_TO: Tensor | None,
        *,
        compute: Compute,
    ) -> Tensor:
        """One after the other."""
        active_TF = self.swiglu(gate_up_TF2, rounds_bf16=compute.rounds_bf16)
        return self.product(active_TF, weight_OF, None, residual_TO, compute=compute)

    def input_gradient(
        self, grad_TO: Tensor, weight_OI: Tensor, into_TI: Tensor | None = None, *, compute: Compute
    ) -> Tensor:
        """By the library."""
        if into_TI is None:
            return torch.mm(grad_TO, weight_OI)
        return into_TI.addmm_(grad_TO.to(into_TI.dtype), weight_OI.to(into_TI.dtype))

    def add_weight_gradient_(
        self, buffer_OI: Tensor, grad_TO: Tensor, x_TI: Tensor, *, compute: Compute
    ) -> None:
        """By the library."""
        buffer_OI.add_(torch.mm(grad_TO.t(), x_TI.to(grad_TO.dtype)))

    # ------------------------------------------------------------ rows

    def embedding(self, token_ids_T: Tensor, table_VD: Tensor) -> Tensor:
        """By torch; an id outside the table is an IndexError on a CPU, and a device assertion elsewhere."""
        return functional.embedding(token_ids_T, table_VD)

    def embedding_backward_(self, token_ids_T: Tensor, grad_TD: Tensor, into_VD: Tensor) -> None:
        """Rows in order on a CPU, in any order on a GPU."""
        into_VD.index_add_(0, token_ids_T, grad_TD)

    def round_bf16(self, x: Tensor, out: Tensor) -> None:
        """See ``reference.round_bf16``."""
        out.copy_(reference.round_bf16(x))

    def _returned(self, y: Tensor, dtype: torch.dtype, *, rounds_bf16: bool) -> Tensor:
        y = y.to(dtype)
        return reference.round_bf16(y).to(dtype) if rounds_bf16 else y

    def rms_norm(
        self, x_TD: Tensor, weight_D: Tensor, eps: float, *, rounds_bf16: bool = False
    ) -> tuple[Tensor, Tensor]:
        """See ``reference.rms_norm``."""
        y, rstd = reference.rms_norm(_wide(x_TD), _wide(weight_D), eps)
        return self._returned(y, x_TD.dtype, rounds_bf16=rounds_bf16), rstd.squeeze(-1)

    def rms_norm_backward(
        self, grad_TD: Tensor, x_TD: Tensor, weight_D: Tensor, rstd_T: Tensor, *, needs_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """d/dx of ``x * rstd(x) * weight``."""
        grad, x, rstd = _wide(grad_TD), _wide(x_TD), rstd_T[:, None]
        dx, dweight = _norm_backward(grad, x, weight_D, rstd, needs_weight=needs_weight)
        return dx.to(x_TD.dtype), dweight

    def swiglu(self, gate_up_TF2: Tensor, *, rounds_bf16: bool = False) -> Tensor:
        """See ``reference.swiglu``."""
        y = reference.swiglu(_wide(gate_up_TF2))
        return self._returned(y, gate_up_TF2.dtype, rounds_bf16=rounds_bf16)

    def swiglu_backward(self, grad_TF: Tensor, gate_up_TF2: Tensor) -> Tensor:
        """d/dgate of silu is ``s + gate * s * (1 - s)``."""
        grad, (gate, up) = _wide(grad_TF), _wide(gate_up_TF2).chunk(2, dim=-1)
        sigmoid = reference.sigmoid(gate)
        d_gate = grad * up * (sigmoid + gate * sigmoid * (1 - sigmoid))
        return torch.cat([d_gate, grad * gate * sigmoid], -1).to(gate_up_TF2.dtype)

    def rope_tables(self, inv_freq_h: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """See ``reference.rope_tables``."""
        return reference.rope_tables(inv_freq_h, positions_T)

    def qkv_rope(
        self, qkv_TE: Tensor, cos_Th: Tensor, sin_Th: Tensor, q_norm_H: Tensor | None, k_norm_H: Tensor | None,
        num_heads: int, num_kv_heads: int, eps: float, *, rounds_bf16: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See ``reference.qkv_rope``."""
        norms = (None if norm is None else _wide(norm) for norm in (q_norm_H, k_norm_H))
        parts = reference.qkv_rope(
            _wide(qkv_TE), cos_Th, sin_Th, *norms, num_heads=num_heads, num_kv_heads=num_kv_heads, eps=eps
        )  # fmt: skip
        q, k, v = (self._returned(part, qkv_TE.dtype, rounds_bf16=rounds_bf16) for part in parts)
        return q, k, v

    def qkv_rope_backward(
        self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv_TE: Tensor | None, cos_Th: Tensor, sin_Th: Tensor,
        q_norm_H: Tensor | None, k_norm_H: Tensor | None, eps: float, *, needs_norms: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """Rotates the gradients back: the transpose of a rotation is its inverse."""
        dtype = grad_q.dtype
        grad_q, grad_k = (reference.rotate(_wide(g), cos_Th, -sin_Th) for g in (grad_q, grad_k))
        dq_norm = dk_norm = None
        if qkv_TE is not None and q_norm_H is not None and k_norm_H is not None:
            num_rows, num_heads, head_dim = grad_q.shape
            heads = _wide(qkv_TE).view(num_rows, -1, head_dim)
            q, k = heads[:, :num_heads], heads[:, num_heads : num_heads + grad_k.shape[1]]
            grad_q, dq_norm = _head_norm_backward(
                grad_q, q, q_norm_H, eps, needs_weight=needs_norms
            )
            grad_k, dk_norm = _head_norm_backward(
                grad_k, k, k_norm_H, eps, needs_weight=needs_norms
            )
        parts = [part.flatten(1).to(dtype) for part in (grad_q, grad_k, grad_v)]
        return torch.cat(parts, 1), dq_norm, dk_norm

    # ------------------------------------------------------------ attention

    def write_kv(
        self, k_TKH: Tensor, v_TKH: Tensor, slots_W: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, rows_W: Tensor | None = None
    ) -> None:  # fmt: skip
        """Skipped writes repeat the first real one, since only the device knows which are skipped."""
        if not len(slots_W):
            return
        is_kept_W = slots_W >= 0
        first = is_kept_W.int().argmax()
        rows_W = torch.arange(len(k_TKH), device=k_TKH.device) if rows_W is None else rows_W
        slots, rows = (
            torch.where(is_kept_W, x, x.index_select(0, first[None])) for x in (slots_W, rows_W)
        )
        slots, is_any = slots.clamp(min=0), is_kept_W.any()
        pages, offsets = slots // PAGE_SIZE, slots % PAGE_SIZE
        k_PKHS[pages, :, :, offsets] = torch.where(
            is_any, k_TKH.index_select(0, rows), k_PKHS[pages, :, :, offsets]
        )
        v_PKSH[pages, :, offsets] = torch.where(
            is_any, v_TKH.index_select(0, rows), v_PKSH[pages, :, offsets]
        )

    def paged_attention(
        self, q_TNH: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, plan: AttentionPlan, scale: float
    ) -> Tensor:
        """See ``reference.attention_over_pages``."""
        out = reference.attention_over_pages(
            _wide(q_TNH), _wide(k_PKHS), _wide(v_PKSH), plan, scale=scale
        )
        return out.to(q_TNH.dtype)

    def packed_attention(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout, scale: float
    ) -> tuple[Tensor, Tensor | None]:
        """Keeps nothing: the backward recomputes the forward."""
        pages = _filled_pages(k_TKH, v_TKH, layout)
        return self.paged_attention(q_TNH, *pages, layout.plan, scale), None

    def packed_attention_backward(
        self, grad_TNH: Tensor, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, out_TNH: Tensor, kept: Tensor | None,
        layout: PackedLayout, scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Autograd of the forward formula."""
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in (q_TNH, k_TKH, v_TKH))
            out, _ = TorchBackend.packed_attention(self, q, k, v, layout, scale)
            grad_q, grad_k, grad_v = torch.autograd.grad(out, (q, k, v), grad_TNH)
        return grad_q, grad_k, grad_v

    # ------------------------------------------------------------ head

    def logits(
        self, hidden_RD: Tensor, weight_VD: Tensor, out: Tensor, *, compute: Compute
    ) -> None:
        """Chunk by chunk."""
        num_rows = len(hidden_RD)
        for chunk_RC, weight_CD in zip(out, weight_VD.split(VOCAB_CHUNK), strict=True):
            width = len(weight_CD)
            packed_RC = chunk_RC.view(-1)[: num_rows * width].view(num_rows, width)
            self.product(hidden_RD, weight_CD, out_MO=packed_RC, compute=compute)

    def add_chunk(
        self, logits_RC: Tensor, temperature_R: Tensor, stats: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """See ``reference.merge_statistics``."""
        chunk = reference.chunk_statistics(logits_RC / temperature_R[:, None])
        for column, new in zip(stats, reference.merge_statistics(stats, chunk), strict=True):
            column.copy_(new)

    def log_sum_exp(self, peak_R: Tensor, mass_R: Tensor) -> Tensor:
        """The log in float64: torch's float32 loop and its tail differ, so bits would depend on a row's place."""
        return peak_R + mass_R.double().log().to(peak_R.dtype)

    def logits_gradient_(
        self, logits_RC: Tensor, temperature_R: Tensor, lse_R: Tensor, grad_R: Tensor,
        entropy: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """``-softmax * (grad + entropy's grad * (log_softmax + entropy)) / T``."""
        factor = -(grad_R / temperature_R)[:, None]
        logits_RC.div_(temperature_R[:, None]).sub_(lse_R[:, None])
        if entropy is not None:
            entropy_R, grad_entropy_R = entropy
            # The softmax is 0 where the clamp acts, and 0 * -inf would be NaN.
            centred_RC = logits_RC.clamp(min=-128.0).add_(entropy_R[:, None])
            factor = centred_RC.mul_(-(grad_entropy_R / temperature_R)[:, None]).add_(factor)
        logits_RC.exp_().mul_(factor)

    def sample(
        self, logits: Tensor, which_R: Tensor, vocab_limit: int, rows: SamplingRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Statistics by ``add_chunk``, as in scoring: both give a log-prob the same bits."""
        num_rows, parts = logits.shape[1], []
        for begin, chunk_RC in zip(range(0, vocab_limit, VOCAB_CHUNK), logits, strict=True):
            width = min(VOCAB_CHUNK, vocab_limit - begin)
            parts.append(chunk_RC.view(-1)[: num_rows * width].view(num_rows, width)[which_R])
        logits_RV = edited(torch.cat(parts, 1), rows)
        peak, mass, moment = (torch.zeros_like(rows.temperature_R) for _ in range(3))
        peak.fill_(-torch.inf)
        for chunk_RC in logits_RV.split(VOCAB_CHUNK, dim=1):
            self.add_chunk(chunk_RC, rows.temperature_R, (peak, mass, moment))
        return draw(logits_RV, self.log_sum_exp(peak, mass), rows)


def _norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, *, needs_weight: bool
) -> tuple[Tensor, Tensor | None]:
    """Backward of ``x * rstd * weight`` over the last dimension; sums the weight's gradient over all others."""
    normed, scaled = x * rstd, grad * _wide(weight)
    dx = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    if not needs_weight:
        return dx, None
    return dx, (grad * normed).double().flatten(0, -2).sum(0).to(weight.dtype)


def _head_norm_backward(
    grad: Tensor, x: Tensor, weight_H: Tensor, eps: float, *, needs_weight: bool
) -> tuple[Tensor, Tensor | None]:
    _, rstd = reference.rms_norm(x, _wide(weight_H), eps)
    return _norm_backward(grad, x, weight_H, rstd, needs_weight=needs_weight)


def _filled_pages(k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout) -> tuple[Tensor, Tensor]:
    num_kv_heads, head_dim = k_TKH.shape[1:]
    shape = (layout.num_pages * PAGE_SIZE, num_kv_heads, head_dim)
    pages = []
    for rows_TKH in (k_TKH, v_TKH):
        # index_select and index_copy, not [...]: the gradient of indexing adds in an order that timing decides.
        written = rows_TKH.index_select(0, layout.write_row_W)
        slots = rows_TKH.new_zeros(shape).index_copy(0, layout.write_slot_W, written)
        pages.append(slots.view(layout.num_pages, PAGE_SIZE, num_kv_heads, head_dim))
    return pages[0].permute(0, 2, 3, 1), pages[1].transpose(1, 2)
