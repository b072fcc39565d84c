"""The C++ kernels as torch functions: pointers, shapes and checks; no mathematics.

``native`` is the one instance of the room. It builds the library at its first use, and keeps the reason
if that is impossible; ``handles(tensor)`` tells callers whether to come here or to the torch reference.
All tensors are contiguous and on CPU, float32 unless a dtype is named; another one, or another shape, is a
``KernelError``. Indices inside tensors (slots, pages, ids) are the caller's word.
"""

import ctypes
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerogap.config.env import read_environment
from zerogap.errors import KernelError
from zerogap.kernels.build import load_library
from zerogap.kernels.constants import PAGE_SIZE, VOCAB_CHUNK
from zerogap.kernels.layout import AttentionPlan, PackedLayout
from zerogap.kernels.sampling_rows import SamplingRows

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
_SIGNATURES = {
    "zg_has_gemm": "",
    "zg_panel_columns": "",
    "zg_gemm_nt": "pppppiiiipii",
    "zg_gemm_nn": "pppiiii",
    "zg_gemm_tn": "ppppiiii",
    "zg_norm_gemm_nt": "pppppiiifipii",
    "zg_head_nt": "pppiiii",
    "zg_swiglu_gemm_nt": "ppppiiiipii",
    "zg_embedding": "pppiii",
    "zg_embedding_backward": "pppii",
    "zg_round_bf16": "ppi",
    "zg_rms_norm": "ppppiifi",
    "zg_rms_norm_backward": "ppppppii",
    "zg_swiglu": "ppiii",
    "zg_swiglu_backward": "pppii",
    "zg_rope_tables": "ppppii",
    "zg_qkv_rope": "ppppppppiiiifi",
    "zg_qkv_rope_backward": "ppppppppppiiiif",
    "zg_write_kv": "ppppippii",
    "zg_attention_plan": "piippiiiiiipi",
    "zg_paged_attention": "ppppppiiif",
    "zg_packed_attention_backward": "pppppppppppiiiif",
    "zg_gather_slots": "pppipii",
    "zg_add_chunk": "piipppppp",
    "zg_log_sum_exp": "pppi",
    "zg_logits_gradient": "piipppp",
    "zg_sample": "ppiiippppppppppppp",
}
"""Arguments of every C function, a letter each: pointer, int64, float."""

_NOTHING_NEXT = (None, 0, 0)
"""No weight [N, K] is expected after this product's: the last three arguments of those that can fetch ahead."""

_RETURN_INT64 = {"zg_attention_plan", "zg_embedding", "zg_has_gemm", "zg_panel_columns"}


def _pointer(tensor: Tensor | None, *shape: int, dtype: torch.dtype = torch.float32) -> int | None:
    if tensor is None:
        return None
    if (
        tensor.shape != shape
        or tensor.dtype is not dtype
        or not tensor.is_contiguous()
        or not tensor.is_cpu
    ):
        msg = (
            f"a kernel was given a {tensor.dtype} tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}, "
            f"on {tensor.device}; it reads contiguous {dtype} of shape {shape} on cpu"
        )
        raise KernelError(msg)
    return tensor.data_ptr()


def _most_work(
    num_rows: int, table_width: int, num_kv_heads: int, head_dim: int, num_threads: int
) -> int:
    """int32 that no plan of these shapes exceeds (``cpp/attention_plan.h``): memory is not touched until it is used."""
    # A row has a block of its own at worst, and a step for each 4 pages, at each branch of its table, and at its end.
    steps = num_rows * (table_width // 4 + 3)
    # No more than 8 blocks a thread are large enough to be split, each into parts of scores and of dims.
    split = min(num_rows, 8 * num_threads) * (2 * num_threads + head_dim // PAGE_SIZE)
    return 7 + num_rows * (2 + 1 + 8) + 12 * steps + 5 * num_kv_heads * (num_rows + split)


def _bind(library: ctypes.CDLL) -> dict[str, Callable[..., int | None]]:
    functions = {}
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = [_TYPES[letter] for letter in signature]
        function.restype = ctypes.c_int64 if name in _RETURN_INT64 else None
        functions[name] = function
    return functions


@dataclass(frozen=True)
class KernelCall:
    """A C function, what it was called with and what it returned."""

    function: Callable[..., int | None]
    arguments: list[Any]
    result: int | None


class NativeKernels:
    """Lazily built C++ kernels."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._functions: dict[str, Callable[..., int | None]] = {}
        self._has_gemm, self._panel_columns = False, 1
        self._tape: list[KernelCall] | None = None
        self.why_not: str | None = None
        """Why the torch reference runs instead; None while the library is usable."""

    @property
    def library(self) -> ctypes.CDLL | None:
        """The loaded library, or None with ``why_not`` set.

        Raises:
            KernelError: ZEROGAP_KERNELS=native and it cannot be built.
        """
        if self._library is not None:
            return self._library
        if self.why_not is None:
            choice = read_environment().kernels
            if choice == "torch":
                self.why_not = "ZEROGAP_KERNELS=torch"
            else:
                try:
                    self.use(load_library())
                except KernelError as error:
                    if choice == "native":
                        raise
                    self.why_not = str(error)
        return self._library

    def use(self, library: ctypes.CDLL | None) -> None:
        """Call this build of the sources from now on, or none. For tests; the first use loads this machine's."""
        self._library = library
        self._functions = {} if library is None else _bind(library)
        self._has_gemm = library is not None and bool(self._functions["zg_has_gemm"]())
        self._panel_columns = (library is not None and self._functions["zg_panel_columns"]()) or 1

    def handles(self, tensor: Tensor) -> bool:
        """Whether the C++ path takes this tensor."""
        return tensor.is_cpu and tensor.dtype is torch.float32 and self.library is not None

    def handles_head_dim(self, head_dim: int) -> bool:
        """Whether attention with this head dim has a C++ path."""
        return head_dim % PAGE_SIZE == 0

    def _call(self, name: str, *arguments: object) -> int | None:
        # torch tells a new thread its number of threads when it is asked first, and the kernels read what it told.
        torch.get_num_threads()
        function = self._functions[name]
        result = function(*arguments)
        if self._tape is not None:
            self._tape.append(KernelCall(function, list(arguments), result))
        return result

    @contextmanager
    def recording(self, tape: list[KernelCall]) -> Generator[None]:
        """Within it, every call is made and appended to ``tape``."""
        assert self._tape is None, "one recording at a time"
        self._tape = tape
        try:
            yield
        finally:
            self._tape = None

    # ------------------------------------------------------------ matrix products

    @property
    def has_gemm(self) -> bool:
        """Whether this processor has C++ matrix products (AVX2 or AVX-512); the BLAS multiplies otherwise."""
        return self.library is not None and self._has_gemm

    def multiplies(self, tensor: Tensor) -> bool:
        """Whether a C++ matrix product takes this tensor."""
        return self.handles(tensor) and self.has_gemm

    def gemm_nt(
        self, x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, residual: Tensor | None,
        *, is_bf16: bool = False,
    ) -> None:  # fmt: skip
        """[M, K] x [N, K] transposed, plus the bias [N], plus the residual [M, N], into ``out`` [M, N].

        Here and below, ``is_bf16`` rounds what is returned (and what is computed on the way to a product) to bf16.
        """
        (num_rows, width), num_out = x.shape, len(weight)
        self._call("zg_gemm_nt", _pointer(x, num_rows, width), _pointer(weight, num_out, width),
                   _pointer(bias, num_out), _pointer(residual, num_rows, num_out), _pointer(out, num_rows, num_out),
                   num_rows, num_out, width, is_bf16, *_NOTHING_NEXT)  # fmt: skip

    def head_nt(self, hidden: Tensor, weight: Tensor, logits: Tensor) -> None:
        """[M, K] x [N, K] transposed into the chunks of ``logits`` [chunks, M, VOCAB_CHUNK], the last one packed."""
        (num_rows, width), num_out = hidden.shape, len(weight)
        shape = (-(-num_out // VOCAB_CHUNK), num_rows, VOCAB_CHUNK)
        self._call("zg_head_nt", _pointer(hidden, num_rows, width), _pointer(weight, num_out, width),
                   _pointer(logits, *shape), num_rows, num_out, width, VOCAB_CHUNK)  # fmt: skip

    def norm_gemm_nt(
        self, x: Tensor, norm: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *, is_bf16: bool
    ) -> Tensor:  # fmt: skip
        """``rms_norm(x) @ weight.T + bias``: [M, K], [N, K] -> [M, N]."""
        (num_rows, width), num_out = x.shape, len(weight)
        out = x.new_empty(num_rows, num_out)
        self._call("zg_norm_gemm_nt", _pointer(x, num_rows, width), _pointer(norm, width),
                   _pointer(weight, num_out, width), _pointer(bias, num_out), _pointer(out, num_rows, num_out),
                   num_rows, num_out, width, eps, is_bf16, *_NOTHING_NEXT)  # fmt: skip
        return out

    def swiglu_gemm_nt(
        self, gate_up: Tensor, weight: Tensor, residual: Tensor | None, *, is_bf16: bool
    ) -> Tensor:
        """``swiglu(gate_up) @ weight.T + residual``: [M, 2K], [N, K] -> [M, N]."""
        (num_out, width), num_rows = weight.shape, len(gate_up)
        out = gate_up.new_empty(num_rows, num_out)
        self._call("zg_swiglu_gemm_nt", _pointer(gate_up, num_rows, 2 * width), _pointer(weight, num_out, width),
                   _pointer(residual, num_rows, num_out), _pointer(out, num_rows, num_out), num_rows, num_out,
                   width, is_bf16, *_NOTHING_NEXT)  # fmt: skip
        return out

    def gemm_nn(self, x: Tensor, weight: Tensor, out: Tensor, *, accumulate: bool) -> None:
        """[M, N] x [N, K], into or onto ``out`` [M, K]."""
        (num_rows, num_in), width = x.shape, weight.shape[1]
        self._call("zg_gemm_nn", _pointer(x, num_rows, num_in), _pointer(weight, num_in, width),
                   _pointer(out, num_rows, width), num_rows, num_in, width,
                   accumulate)  # fmt: skip

    def gemm_tn(self, a: Tensor, b: Tensor, out: Tensor, *, accumulate: bool) -> None:
        """[M, N] transposed x [M, K], into or onto ``out`` [N, K]."""
        (num_rows, num_out), width = a.shape, b.shape[1]
        columns = self._panel_columns
        panels = b.new_empty(-(-width // columns) * columns * num_rows)
        self._call("zg_gemm_tn", _pointer(a, num_rows, num_out), _pointer(b, num_rows, width),
                   _pointer(panels, len(panels)), _pointer(out, num_out, width), num_rows, num_out,
                   width, accumulate)  # fmt: skip

    # ------------------------------------------------------------ rows

    def embedding(self, token_ids: Tensor, table: Tensor) -> Tensor:
        """Rows of ``table`` [V, D].

        Raises:
            KernelError: an id outside [0, V).
        """
        (num_ids,), (num_vectors, width) = token_ids.shape, table.shape
        out = table.new_empty(num_ids, width)
        num_outside = self._call(
            "zg_embedding", _pointer(token_ids, num_ids, dtype=torch.int64), _pointer(table, num_vectors, width),
            _pointer(out, num_ids, width), num_ids, num_vectors, width,
        )  # fmt: skip
        if num_outside:
            msg = f"{num_outside} of {num_ids} token ids are outside the vocabulary of {num_vectors}; ids and model belong to different tokenizers"
            raise KernelError(msg)
        return out

    def embedding_backward(self, token_ids: Tensor, grad: Tensor, into: Tensor) -> None:
        """``into[token_ids] += grad``, in order."""
        (num_ids, width), num_vectors = grad.shape, len(into)
        self._call("zg_embedding_backward", _pointer(token_ids, num_ids, dtype=torch.int64),
                   _pointer(grad, num_ids, width), _pointer(into, num_vectors, width), num_ids, width)  # fmt: skip

    def round_bf16(self, x: Tensor, out: Tensor) -> None:
        """Each element to the nearest bf16, into ``out`` of the same shape, which may be ``x``."""
        self._call("zg_round_bf16", _pointer(x, *x.shape), _pointer(out, *x.shape), x.numel())

    def rms_norm(
        self, x_TD: Tensor, weight_D: Tensor, eps: float, *, is_bf16: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(y, 1 / rms) of each row."""
        num_rows, width = x_TD.shape
        x_TD = x_TD.contiguous()
        y, rstd = torch.empty_like(x_TD), x_TD.new_empty(num_rows)
        self._call("zg_rms_norm", _pointer(x_TD, num_rows, width), _pointer(weight_D, width),
                   _pointer(y, num_rows, width), _pointer(rstd, num_rows),
                   num_rows, width, eps, is_bf16)  # fmt: skip
        return y, rstd

    def rms_norm_backward(
        self, grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(dx, dweight)."""
        num_rows, width = x.shape
        x, grad = x.contiguous(), grad.contiguous()
        dx, dw = torch.empty_like(x), torch.empty_like(weight)
        self._call("zg_rms_norm_backward", _pointer(grad, num_rows, width), _pointer(x, num_rows, width),
                   _pointer(weight, width), _pointer(rstd, num_rows), _pointer(dx, num_rows, width),
                   _pointer(dw, width), num_rows, width)  # fmt: skip
        return dx, dw

    def swiglu(self, gate_up: Tensor, *, is_bf16: bool = False) -> Tensor:
        """[T, 2F] -> [T, F]."""
        num_rows, width = len(gate_up), gate_up.shape[1] // 2
        y = gate_up.new_empty(num_rows, width)
        self._call("zg_swiglu", _pointer(gate_up, num_rows, 2 * width), _pointer(y, num_rows, width),
                   num_rows, width, is_bf16)  # fmt: skip
        return y

    def swiglu_backward(self, grad: Tensor, gate_up: Tensor) -> Tensor:
        """Gradient of ``[gate | up]``."""
        num_rows, width = grad.shape
        grad, d_gate_up = grad.contiguous(), torch.empty_like(gate_up)
        self._call("zg_swiglu_backward", _pointer(grad, num_rows, width), _pointer(gate_up, num_rows, 2 * width),
                   _pointer(d_gate_up, num_rows, 2 * width), num_rows, width)  # fmt: skip
        return d_gate_up

    def rope_tables(self, inv_freq: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [T, H/2]."""
        num_rows, half = len(positions), len(inv_freq)
        cos, sin = inv_freq.new_empty(num_rows, half), inv_freq.new_empty(num_rows, half)
        self._call("zg_rope_tables", _pointer(inv_freq, half), _pointer(positions, num_rows, dtype=torch.int64),
                   _pointer(cos, num_rows, half), _pointer(sin, num_rows, half),
                   num_rows, half)  # fmt: skip
        return cos, sin

    def qkv_rope(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, q_norm: Tensor | None, k_norm: Tensor | None,
        num_heads: int, num_kv_heads: int, eps: float, *, is_bf16: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See ``rowwise.qkv_rope``."""
        num_rows, half = len(qkv), cos.shape[1]
        q_shape, kv_shape = (num_rows, num_heads, 2 * half), (num_rows, num_kv_heads, 2 * half)
        q, k, v = qkv.new_empty(q_shape), qkv.new_empty(kv_shape), qkv.new_empty(kv_shape)
        width = (num_heads + 2 * num_kv_heads) * 2 * half
        self._call("zg_qkv_rope", _pointer(qkv, num_rows, width), _pointer(cos, num_rows, half),
                   _pointer(sin, num_rows, half), _pointer(q_norm, 2 * half), _pointer(k_norm, 2 * half),
                   _pointer(q, *q_shape), _pointer(k, *kv_shape), _pointer(v, *kv_shape), num_rows,
                   num_heads, num_kv_heads, 2 * half, eps, is_bf16)  # fmt: skip
        return q, k, v

    def qkv_rope_backward(
        self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv: Tensor | None, cos: Tensor, sin: Tensor,
        q_norm: Tensor | None, k_norm: Tensor | None, eps: float,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """(dqkv, dq_norm, dk_norm)."""
        grad_q, grad_k, grad_v = grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()
        (num_rows, num_heads, head_dim), num_kv_heads = grad_q.shape, grad_k.shape[1]
        kv_shape, half = (num_rows, num_kv_heads, head_dim), head_dim // 2
        width = (num_heads + 2 * num_kv_heads) * head_dim
        dqkv, dw = grad_q.new_empty(num_rows, width), grad_q.new_empty(2, head_dim)
        self._call("zg_qkv_rope_backward", _pointer(grad_q, num_rows, num_heads, head_dim),
                   _pointer(grad_k, *kv_shape), _pointer(grad_v, *kv_shape), _pointer(qkv, num_rows, width),
                   _pointer(cos, num_rows, half), _pointer(sin, num_rows, half), _pointer(q_norm, head_dim),
                   _pointer(k_norm, head_dim), _pointer(dqkv, num_rows, width),
                   _pointer(dw, 2, head_dim), num_rows, num_heads, num_kv_heads, head_dim, eps)  # fmt: skip
        return (dqkv, None, None) if q_norm is None else (dqkv, dw[0], dw[1])

    # ------------------------------------------------------------ attention

    def write_kv(
        self,
        k: Tensor,
        v: Tensor | None,
        slots: Tensor,
        k_pages: Tensor,
        v_pages: Tensor | None,
        rows: Tensor | None = None,
    ) -> None:
        """Row ``rows[i]`` (or i) to ``slots[i]``: of k in [P, K, H, S], and of v, if given, in [P, K, S, H]."""
        num_rows, num_kv_heads, head_dim = k.shape
        num_pages, num_slots = len(k_pages), num_rows if rows is None else len(rows)
        self._call("zg_write_kv", _pointer(k, num_rows, num_kv_heads, head_dim),
                   _pointer(v, num_rows, num_kv_heads, head_dim), _pointer(rows, num_slots, dtype=torch.int64),
                   _pointer(slots, num_slots, dtype=torch.int64), num_slots,
                   _pointer(k_pages, num_pages, num_kv_heads, head_dim, PAGE_SIZE),
                   _pointer(v_pages, num_pages, num_kv_heads, PAGE_SIZE, head_dim), num_kv_heads,
                   head_dim)  # fmt: skip

    def fill_pages(
        self, by_dim: Tensor, by_slot: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        """Packed rows of two tensors as pages [P, K, H, S] and [P, K, S, H]; unwritten slots are 0."""
        num_kv_heads, head_dim = by_dim.shape[1:]
        pages_by_dim = by_dim.new_zeros(layout.num_pages, num_kv_heads, head_dim, PAGE_SIZE)
        pages_by_slot = by_dim.new_zeros(layout.num_pages, num_kv_heads, PAGE_SIZE, head_dim)
        self.write_kv(by_dim.contiguous(), by_slot.contiguous(), layout.write_slot_W, pages_by_dim,
                      pages_by_slot, layout.write_row_W)  # fmt: skip
        return pages_by_dim, pages_by_slot

    def attention_work(
        self, plan: AttentionPlan, *, num_rows: int, num_pages: int, num_heads: int, num_kv_heads: int, head_dim: int
    ) -> Tensor:  # fmt: skip
        """int32 array of ``cpp/attention_plan.h``: computed by a plan's first layer, used by all.

        Raises:
            KernelError: a row reads an entry that the page table does not have, or a page that is not there.
        """
        is_recording = (
            self._tape is not None
        )  # the first layer's call is part of what is made again
        key = (
            num_rows,
            num_pages,
            num_heads,
            num_kv_heads,
            head_dim,
            torch.get_num_threads(),
            is_recording,
        )
        work = plan.work.get(key)
        if work is None:
            work = plan.work[key] = self._attention_work(plan, *key[:-1])
        return work

    def _attention_work(
        self, plan: AttentionPlan, num_rows: int, num_pages: int, num_heads: int, num_kv_heads: int, head_dim: int,
        num_threads: int,
    ) -> Tensor:  # fmt: skip
        table = plan.page_table_BP
        num_sequences, width = table.shape
        size = _most_work(num_rows, width, num_kv_heads, head_dim, num_threads)
        work = torch.empty(size, dtype=torch.int32)
        row = self._call("zg_attention_plan", _pointer(table, num_sequences, width, dtype=torch.int32),
                         num_sequences, width, _pointer(plan.row_sequence_T, num_rows, dtype=torch.int32),
                         _pointer(plan.row_position_T, num_rows, dtype=torch.int32), num_rows, num_pages,
                         num_heads // num_kv_heads, num_kv_heads, head_dim, num_threads,
                         _pointer(work, size, dtype=torch.int32), size)  # fmt: skip
        assert row is not None
        assert row != -2, "_most_work is too little"
        if row >= 0:
            sequence, position = int(plan.row_sequence_T[row]), int(plan.row_position_T[row])
            msg = f"query row {row} reads position {position} of sequence {sequence}, which needs a page that does not exist: the page table is {num_sequences} x {width} and there are {num_pages} pages of {PAGE_SIZE}; pass a table that covers every row"
            raise KernelError(msg)
        return work

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
        num_pages, num_kv_heads = k_pages.shape[:2]
        work = self.attention_work(plan, num_rows=num_rows, num_pages=num_pages, num_heads=num_heads,
                                   num_kv_heads=num_kv_heads, head_dim=head_dim)  # fmt: skip
        out = torch.empty_like(q)
        lse = q.new_empty(num_rows, num_heads) if with_lse else None
        self._call("zg_paged_attention", _pointer(q, num_rows, num_heads, head_dim),
                   _pointer(k_pages, num_pages, num_kv_heads, head_dim, PAGE_SIZE),
                   _pointer(v_pages, num_pages, num_kv_heads, PAGE_SIZE, head_dim), work.data_ptr(),
                   _pointer(out, num_rows, num_heads, head_dim), _pointer(lse, num_rows, num_heads), num_heads,
                   num_kv_heads, head_dim, scale)  # fmt: skip
        return out, lse

    def packed_attention_backward(
        self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
        layout: PackedLayout, scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv) of packed rows; the same bits for every number of threads."""
        (num_rows, num_heads, head_dim), num_kv_heads, num_pages = (
            q.shape,
            k.shape[1],
            layout.num_pages,
        )
        grad, k, v = grad.contiguous(), k.contiguous(), v.contiguous()
        # The backward needs keys along head dims as well, and values along keys.
        k_by_dim, k_by_slot = self.fill_pages(k, k, layout)
        v_by_dim = torch.zeros_like(k_by_dim)
        self.write_kv(v, None, layout.write_slot_W, v_by_dim, None, layout.write_row_W)
        dk_pages, dv_pages = torch.zeros_like(k_by_slot), torch.zeros_like(k_by_slot)
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        by_row = (num_rows, num_heads, head_dim)
        by_dim = (num_pages, num_kv_heads, head_dim, PAGE_SIZE)
        by_slot = (num_pages, num_kv_heads, PAGE_SIZE, head_dim)
        work = self.attention_work(layout.plan, num_rows=num_rows, num_pages=num_pages, num_heads=num_heads,
                                   num_kv_heads=num_kv_heads, head_dim=head_dim)  # fmt: skip
        self._call("zg_packed_attention_backward", _pointer(grad, *by_row), _pointer(q, *by_row),
                   _pointer(out, *by_row), _pointer(lse, num_rows, num_heads), _pointer(k_by_dim, *by_dim),
                   _pointer(k_by_slot, *by_slot), _pointer(v_by_dim, *by_dim), work.data_ptr(),
                   _pointer(dq, *by_row), _pointer(dk_pages, *by_slot), _pointer(dv_pages, *by_slot), num_pages,
                   num_heads, num_kv_heads, head_dim, scale)  # fmt: skip
        num_slots = len(layout.write_row_W)
        for pages, rows in ((dk_pages, dk), (dv_pages, dv)):
            self._call("zg_gather_slots", _pointer(pages, *by_slot),
                       _pointer(layout.write_row_W, num_slots, dtype=torch.int64),
                       _pointer(layout.write_slot_W, num_slots, dtype=torch.int64), num_slots,
                       _pointer(rows, num_rows, num_kv_heads, head_dim), num_kv_heads, head_dim)  # fmt: skip
        return dq, dk, dv

    # ------------------------------------------------------------ head

    def add_chunk(
        self,
        logits: Tensor,
        temperature: Tensor,
        local_target: Tensor,
        stats: tuple[Tensor, Tensor, Tensor, Tensor],
    ) -> None:
        """One vocabulary chunk [R, C] into the running (peak, mass, moment, target logit), in place."""
        num_rows, width = logits.shape
        self._call("zg_add_chunk", _pointer(logits, num_rows, width), num_rows, width,
                   _pointer(temperature, num_rows), _pointer(local_target, num_rows, dtype=torch.int64),
                   *(_pointer(column, num_rows) for column in stats))  # fmt: skip

    def log_sum_exp(self, peak: Tensor, mass: Tensor) -> Tensor:
        """The log of the mass, plus the peak, as the sampler computes it."""
        num_rows, lse = len(peak), torch.empty_like(peak)
        self._call("zg_log_sum_exp", _pointer(peak, num_rows), _pointer(mass, num_rows), _pointer(lse, num_rows),
                   num_rows)  # fmt: skip
        return lse

    def logits_gradient_(
        self, logits: Tensor, temperature: Tensor, lse: Tensor, local_target: Tensor, grad: Tensor
    ) -> None:
        """Logits of a chunk to their gradient, in place."""
        (num_rows, width), grad = logits.shape, grad.contiguous()
        self._call("zg_logits_gradient", _pointer(logits, num_rows, width), num_rows, width,
                   _pointer(temperature, num_rows), _pointer(lse, num_rows),
                   _pointer(local_target, num_rows, dtype=torch.int64), _pointer(grad, num_rows))  # fmt: skip

    def sample(
        self, logits: Tensor, which: Tensor, vocab_limit: int, rows: SamplingRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See ``sampling.sample_tokens``; ``logits`` is the filled [chunks, M, VOCAB_CHUNK] buffer.

        Draw r reads row ``which[r]`` of M; one with edits reads a row that no other draw reads. A row without a distribution (NaN, infinity, every id banned) gets token -1 and NaN.
        """
        num_chunks, num_logits, num_rows = (
            -(-vocab_limit // VOCAB_CHUNK),
            logits.shape[1],
            len(which),
        )
        token = torch.empty(num_rows, dtype=torch.int64)
        log_prob, kept = torch.empty(num_rows), torch.empty(num_rows)
        num_edits = len(rows.edit_ids)
        self._call("zg_sample", _pointer(logits, num_chunks, num_logits, VOCAB_CHUNK),
                   _pointer(which, num_rows, dtype=torch.int64), num_rows, num_logits, vocab_limit, _pointer(rows.temperature_R, num_rows),
                   _pointer(rows.greedy_R, num_rows, dtype=torch.bool),
                   _pointer(rows.top_k_R, num_rows, dtype=torch.int32), _pointer(rows.top_p_R, num_rows),
                   _pointer(rows.min_p_R, num_rows), _pointer(rows.uniform_R, num_rows, dtype=torch.float64),
                   _pointer(rows.edit_offsets, num_rows + 1, dtype=torch.int64),
                   _pointer(rows.edit_ids, num_edits, dtype=torch.int32), _pointer(rows.edit_scale, num_edits),
                   _pointer(rows.edit_add, num_edits), _pointer(token, num_rows, dtype=torch.int64),
                   _pointer(log_prob, num_rows), _pointer(kept, num_rows))  # fmt: skip
        return token, log_prob, kept


native = NativeKernels()
"""The kernels of this process."""
