"""The C++ kernels as torch functions: pointers, shapes and checks; no mathematics.

``native`` is the one instance of the room. It builds the library at its first use, and keeps the reason
if that is impossible; ``handles(tensor)`` tells callers whether to come here or to the torch reference.
All tensors are float32, contiguous and on CPU.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zerogap.config.env import read_environment
from zerogap.errors import KernelError, NumericsError
from zerogap.kernels.build import load_library
from zerogap.kernels.constants import PAGE_SIZE, VOCAB_CHUNK

if TYPE_CHECKING:
    from zerogap.kernels.attention import AttentionPlan, PackedLayout
    from zerogap.kernels.head import Statistics
    from zerogap.kernels.sampling import SamplingRows

_I64, _F32 = ctypes.c_int64, ctypes.c_float


def _pointer(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
    if tensor is None:
        return ctypes.c_void_p(None)
    if tensor.dtype != dtype or not tensor.is_contiguous():
        msg = f"a kernel was given a {tensor.dtype} tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}; it needs contiguous {dtype}"
        raise KernelError(msg)
    return ctypes.c_void_p(tensor.data_ptr())


class NativeKernels:
    """Lazily built C++ kernels."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self.why_not: str | None = None
        """Why the torch reference runs instead; None while the library is usable."""

    @property
    def library(self) -> ctypes.CDLL | None:
        """The loaded library, or None with ``why_not`` set.

        Raises:
            KernelError: ZEROGAP_KERNELS=native and it cannot be built.
        """
        if self._library is None and self.why_not is None:
            choice = read_environment().kernels
            if choice == "torch":
                self.why_not = "ZEROGAP_KERNELS=torch"
            else:
                try:
                    self._library = load_library()
                except KernelError as error:
                    if choice == "native":
                        raise
                    self.why_not = str(error)
        return self._library

    def handles(self, tensor: Tensor) -> bool:
        """Whether the C++ path takes this tensor."""
        return (
            tensor.dtype == torch.float32
            and tensor.device.type == "cpu"
            and self.library is not None
        )

    def handles_head_dim(self, head_dim: int) -> bool:
        """Whether attention with this head dim has a C++ path."""
        return head_dim % PAGE_SIZE == 0

    def _call(self, name: str, *arguments: object) -> None:
        library = self.library
        assert library is not None, "handles() is asked first"
        getattr(library, name)(*arguments)

    # ------------------------------------------------------------ rows

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(y, 1 / rms) of each row."""
        x_TD = x_TD.contiguous()
        y, rstd = torch.empty_like(x_TD), x_TD.new_empty(len(x_TD))
        self._call("zg_rms_norm", _pointer(x_TD), _pointer(weight_D), _pointer(y), _pointer(rstd),
                   _I64(len(x_TD)), _I64(x_TD.shape[1]), _F32(eps))  # fmt: skip
        return y, rstd

    def rms_norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(dx, dweight)."""
        x, grad = x.contiguous(), grad.contiguous()
        dx = torch.empty_like(x)
        partial = x.new_zeros(torch.get_num_threads(), x.shape[1])
        self._call("zg_rms_norm_backward", _pointer(grad), _pointer(x), _pointer(weight), _pointer(rstd),
                   _pointer(dx), _pointer(partial), _I64(len(x)), _I64(x.shape[1]))  # fmt: skip
        return dx, partial.sum(0)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """[T, 2F] -> [T, F]."""
        num_rows, width = gate_up.shape
        y = gate_up.new_empty(num_rows, width // 2)
        self._call("zg_swiglu", _pointer(gate_up), _pointer(y), _I64(num_rows), _I64(width // 2))
        return y

    def swiglu_backward(self, grad: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of ``[gate | up]``."""
        d_gate_up = torch.empty_like(gate_up)
        self._call("zg_swiglu_backward", _pointer(grad.contiguous()), _pointer(gate_up), _pointer(d_gate_up),
                   _I64(len(gate_up)), _I64(gate_up.shape[1] // 2))  # fmt: skip
        return d_gate_up

    def rope_tables(self, inv_freq: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [T, H/2]."""
        cos = inv_freq.new_empty(len(positions), len(inv_freq))
        sin = torch.empty_like(cos)
        self._call("zg_rope_tables", _pointer(inv_freq), _pointer(positions, torch.int64), _pointer(cos),
                   _pointer(sin), _I64(len(positions)), _I64(len(inv_freq)))  # fmt: skip
        return cos, sin

    def qkv_rope(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, q_norm: Tensor | None, k_norm: Tensor | None,
        num_heads: int, num_kv_heads: int, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See ``rowwise.qkv_rope``."""
        num_rows, head_dim = len(qkv), 2 * cos.shape[1]
        q = qkv.new_empty(num_rows, num_heads, head_dim)
        k, v = (
            qkv.new_empty(num_rows, num_kv_heads, head_dim),
            qkv.new_empty(num_rows, num_kv_heads, head_dim),
        )
        self._call("zg_qkv_rope", _pointer(qkv), _pointer(cos), _pointer(sin), _pointer(q_norm), _pointer(k_norm),
                   _pointer(q), _pointer(k), _pointer(v), _I64(num_rows), _I64(num_heads), _I64(num_kv_heads),
                   _I64(head_dim), _F32(eps))  # fmt: skip
        return q, k, v

    def qkv_rope_backward(
        self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv: Tensor | None, cos: Tensor, sin: Tensor,
        q_norm: Tensor | None, k_norm: Tensor | None, eps: float,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """(dqkv, dq_norm, dk_norm)."""
        grad_q, grad_k, grad_v = grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()
        num_rows, num_heads, head_dim = grad_q.shape
        num_kv_heads = grad_k.shape[1]
        dqkv = grad_q.new_empty(num_rows, (num_heads + 2 * num_kv_heads) * head_dim)
        partial = grad_q.new_zeros(torch.get_num_threads(), 2, head_dim)
        self._call("zg_qkv_rope_backward", _pointer(grad_q), _pointer(grad_k), _pointer(grad_v), _pointer(qkv),
                   _pointer(cos), _pointer(sin), _pointer(q_norm), _pointer(k_norm), _pointer(dqkv),
                   _pointer(partial), _I64(num_rows), _I64(num_heads), _I64(num_kv_heads), _I64(head_dim),
                   _F32(eps))  # fmt: skip
        if q_norm is None:
            return dqkv, None, None
        dq_norm, dk_norm = partial.sum(0)
        return dqkv, dq_norm, dk_norm

    # ------------------------------------------------------------ attention

    def write_kv(
        self,
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        rows: Tensor | None = None,
    ) -> None:
        """Row ``rows[i]`` (or i) to ``slots[i]``."""
        self._call("zg_write_kv", _pointer(k), _pointer(v), _pointer(rows, torch.int64),
                   _pointer(slots, torch.int64), _I64(len(slots)), _pointer(k_pages), _pointer(v_pages),
                   _I64(k.shape[1]), _I64(k.shape[2]))  # fmt: skip

    def fill_pages(self, k: Tensor, v: Tensor, layout: PackedLayout) -> tuple[Tensor, Tensor]:
        """Packed rows as (k [P, K, H, S], v [P, K, S, H]); unwritten slots are 0."""
        num_kv_heads, head_dim = k.shape[1:]
        k_pages = k.new_zeros(layout.num_pages, num_kv_heads, head_dim, PAGE_SIZE)
        v_pages = k.new_zeros(layout.num_pages, num_kv_heads, PAGE_SIZE, head_dim)
        self.write_kv(
            k.contiguous(),
            v.contiguous(),
            layout.write_slot_W,
            k_pages,
            v_pages,
            layout.write_row_W,
        )
        return k_pages, v_pages

    def paged_attention(
        self,
        q: Tensor,
        k_pages: Tensor,
        v_pages: Tensor,
        plan: AttentionPlan,
        scale: float,
        *,
        with_lse: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(out [T, N, H], log-sum-exp [T, N] if asked)."""
        num_rows, num_heads, head_dim = q.shape
        out = torch.empty_like(q)
        lse = q.new_empty(num_rows, num_heads) if with_lse else None
        table = plan.page_table_BP
        self._call("zg_paged_attention", _pointer(q), _pointer(k_pages), _pointer(v_pages),
                   _pointer(table, torch.int32), _I64(table.shape[1]), _pointer(plan.row_sequence_T, torch.int32),
                   _pointer(plan.row_position_T, torch.int32), _pointer(out), _pointer(lse), _I64(num_rows),
                   _I64(num_heads), _I64(k_pages.shape[1]), _I64(head_dim), _F32(scale))  # fmt: skip
        return out, lse

    def packed_attention_backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        layout: PackedLayout, scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv) of packed rows."""
        num_rows, num_heads, head_dim = q.shape
        grad = grad.contiguous()
        delta = (grad * out).sum(-1)
        k_pages, v_pages = self.fill_pages(k, v, layout)
        # The backward needs keys along head dims as well, and values along keys.
        k_rows, v_transposed = (
            k_pages.transpose(2, 3).contiguous(),
            v_pages.transpose(2, 3).contiguous(),
        )
        dk_pages, dv_pages = torch.zeros_like(v_pages), torch.zeros_like(v_pages)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        plan, table = layout.plan, layout.plan.page_table_BP
        self._call("zg_packed_attention_backward", _pointer(grad), _pointer(q), _pointer(delta), _pointer(lse),
                   _pointer(k_pages), _pointer(k_rows), _pointer(v_transposed), _pointer(table, torch.int32),
                   _I64(table.shape[1]), _pointer(plan.row_sequence_T, torch.int32),
                   _pointer(plan.row_position_T, torch.int32), _pointer(layout.component_B, torch.int32),
                   _pointer(dq), _pointer(dk_pages), _pointer(dv_pages), _I64(num_rows), _I64(num_heads),
                   _I64(k.shape[1]), _I64(head_dim), _F32(scale))  # fmt: skip
        for pages, rows in ((dk_pages, dk), (dv_pages, dv)):
            self._call("zg_gather_slots", _pointer(pages), _pointer(layout.write_row_W, torch.int64),
                       _pointer(layout.write_slot_W, torch.int64), _I64(len(layout.write_row_W)), _pointer(rows),
                       _I64(k.shape[1]), _I64(head_dim))  # fmt: skip
        return dq, dk, dv

    # ------------------------------------------------------------ head

    def add_chunk(
        self, stats: Statistics, logits: Tensor, temperature: Tensor, local_target: Tensor
    ) -> None:
        """One vocabulary chunk [R, C] into the running statistics."""
        self._call("zg_add_chunk", _pointer(logits), _I64(logits.shape[1]), _I64(len(logits)),
                   _I64(logits.shape[1]), _pointer(temperature), _pointer(local_target, torch.int64),
                   _pointer(stats.peak), _pointer(stats.mass), _pointer(stats.moment),
                   _pointer(stats.target_logit))  # fmt: skip

    def log_sum_exp(self, peak: Tensor, mass: Tensor) -> Tensor:
        """The log of the mass, plus the peak, as the sampler computes it."""
        lse = torch.empty_like(peak)
        self._call("zg_log_sum_exp", _pointer(peak), _pointer(mass), _pointer(lse), _I64(len(peak)))
        return lse

    def logits_gradient_(
        self, logits: Tensor, temperature: Tensor, lse: Tensor, local_target: Tensor, grad: Tensor
    ) -> None:
        """Logits of a chunk to their gradient, in place."""
        self._call("zg_logits_gradient", _pointer(logits), _I64(len(logits)), _I64(logits.shape[1]),
                   _pointer(temperature), _pointer(lse), _pointer(local_target, torch.int64),
                   _pointer(grad.contiguous()))  # fmt: skip

    def sample(
        self, logits: Tensor, num_rows: int, vocab_limit: int, rows: SamplingRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``sampling.sample_tokens``; ``logits`` is the filled [chunks, M, VOCAB_CHUNK] buffer.

        Raises:
            NumericsError: a row whose logits hold NaN or leave nothing to draw.
        """
        assert logits.shape[2] == VOCAB_CHUNK, "the C++ side has the chunk width compiled in"
        token = torch.empty(num_rows, dtype=torch.int64)
        log_prob, kept = torch.empty(num_rows), torch.empty(num_rows)
        self._call("zg_sample", _pointer(logits), _I64(num_rows), _I64(logits.shape[1]), _I64(vocab_limit),
                   _pointer(rows.temperature_R), _pointer(rows.greedy_R, torch.bool),
                   _pointer(rows.top_k_R, torch.int32), _pointer(rows.top_p_R), _pointer(rows.min_p_R),
                   _pointer(rows.uniform_R, torch.float64), _pointer(rows.edit_offsets, torch.int64),
                   _pointer(rows.edit_ids, torch.int32), _pointer(rows.edit_scale), _pointer(rows.edit_add),
                   _pointer(token, torch.int64), _pointer(log_prob), _pointer(kept))  # fmt: skip
        if not bool(torch.isfinite(log_prob).all()):
            row = int((~torch.isfinite(log_prob)).nonzero()[0])
            msg = f"row {row} of {num_rows} has no finite log-prob ({float(log_prob[row])}): its logits hold NaN or infinity, or every id is banned; check the weights and logit_bias"
            raise NumericsError(msg)
        return token, log_prob, kept


native = NativeKernels()
"""The kernels of this process."""
