"""The CPU backend in C++: pointers, shapes and checks; no mathematics.

``native`` is the only instance. It builds the library at first use; if that fails, it keeps the reason and takes no
tensor, so torch computes. It inherits from the torch backend what has no C++ here: GEMMs by a BLAS, and attention with
a head dim that 16 does not divide.

All tensors are contiguous and on the CPU, float32 unless a dtype is named; any
other tensor, shape or subclass of ``Tensor`` is a ``KernelError``. Indices inside tensors (slots, pages, ids) are not
checked.
"""

import ctypes
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zerogap.config.env import read_environment
from zerogap.errors import KernelError
from zerogap.kernels.backend import Compute, SamplingRows
from zerogap.kernels.build import load_library
from zerogap.kernels.constants import PAGE_SIZE, VOCAB_CHUNK
from zerogap.kernels.layout import AttentionPlan, PackedLayout
from zerogap.kernels.torch_backend import TorchBackend

_TYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}
_SIGNATURES = {
    "zg_panel_columns": "",
    "zg_gemm_nt": "pppppiiiipii",
    "zg_gemm_nn": "pppiiii",
    "zg_gemm_tn": "ppppiii",
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
    "zg_add_chunk": "piipppp",
    "zg_log_sum_exp": "pppi",
    "zg_logits_gradient": "piippppp",
    "zg_sample": "ppiiippppppppppppp",
}
"""Arguments of every C function, one letter each: pointer, int64, float."""

_NOTHING_NEXT = (None, 0, 0)
"""The last three arguments of a GEMM that can prefetch: the next GEMM's weight and its [N, K]; here, none."""

_RETURN_INT64 = {"zg_attention_plan", "zg_embedding", "zg_panel_columns"}


_WITH_MEMORY = (Tensor, nn.Parameter)
"""Types whose ``data_ptr`` is the address of all elements; a subclass (DTensor, FakeTensor) may hold none or a part."""


def _pointer(tensor: Tensor | None, *shape: int, dtype: torch.dtype = torch.float32) -> int | None:
    if tensor is None:
        return None
    if (
        tensor.shape != shape
        or tensor.dtype is not dtype
        or not tensor.is_contiguous()
        or not tensor.is_cpu
        or type(tensor) not in _WITH_MEMORY
    ):
        raise KernelError(_why_refused(tensor, shape, dtype))
    return tensor.data_ptr()


def _why_refused(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    if type(tensor) not in _WITH_MEMORY:
        return f"a C++ kernel was given a {type(tensor).__name__}, whose memory may not hold its elements; pass a plain tensor, such as its local part"
    return (
        f"a kernel was given a {tensor.dtype} tensor of shape {tuple(tensor.shape)}, strides {tensor.stride()}, "
        f"on {tensor.device}; it reads contiguous {dtype} of shape {shape} on cpu"
    )


def _most_work(
    num_rows: int, table_width: int, num_kv_heads: int, head_dim: int, num_threads: int
) -> int:
    """Upper bound of a plan's size in int32 (``cpp/attention_plan.h``). Unused memory of the bound is never touched."""
    # At worst a row has its own block, and a step per 4 pages, per branch of its table, and at its end.
    steps = num_rows * (table_width // 4 + 3)
    # At most 8 blocks per thread are large enough to be split, each into parts of scores and of dims.
    split = min(num_rows, 8 * num_threads) * (2 * num_threads + head_dim // PAGE_SIZE)
    return 7 + num_rows * (2 + 1 + 8) + 12 * steps + 5 * num_kv_heads * (num_rows + split)


def _bind(library: ctypes.CDLL) -> dict[str, Callable[..., int | None]]:
    functions = {}
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name, None)
        if function is None:  # a GEMM, on a processor that has none
            continue
        function.argtypes = [_TYPES[letter] for letter in signature]
        function.restype = ctypes.c_int64 if name in _RETURN_INT64 else None
        functions[name] = function
    return functions


@dataclass(frozen=True)
class KernelCall:
    """A C function, its arguments and its result."""

    function: Callable[..., int | None]
    arguments: list[Any]
    result: int | None


class _Tape(threading.local):
    """The captured calls of this thread, or None; each thread captures only its own calls."""

    calls: list[KernelCall] | None = None


class NativeKernels(TorchBackend):
    """Lazily built C++ kernels."""

    name = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self._library: ctypes.CDLL | None = None
        self._functions: dict[str, Callable[..., int | None]] = {}
        self._tape = _Tape()
        self.why_not: str | None = None
        """Why the torch reference runs instead; None if the library is usable."""

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
        """Call this build of the kernels from now on, or none. The default is this machine's, loaded at first use."""
        self._library = library
        self._functions = {} if library is None else _bind(library)

    def takes(self, tensor: Tensor) -> bool:
        """Whether the C++ path takes this tensor."""
        is_loaded = self._library is not None or self.library is not None
        return is_loaded and tensor.dtype is torch.float32 and tensor.is_cpu

    def handles_head_dim(self, head_dim: int) -> bool:
        """Whether attention with this head dim has a C++ path."""
        return head_dim % PAGE_SIZE == 0

    def _call(self, name: str, *arguments: object) -> int | None:
        # In a new thread, torch sets OpenMP's number of threads at this first call; the kernels read that number.
        torch.get_num_threads()
        function = self._functions[name]
        result = function(*arguments)
        if self._tape.calls is not None:
            self._tape.calls.append(KernelCall(function, list(arguments), result))
        return result

    @contextmanager
    def capturing(self, tape: list[KernelCall]) -> Generator[None]:
        """Within it, this thread appends every call to ``tape`` after making it."""
        assert self._tape.calls is None, "one graph capture at a time"
        self._tape.calls = tape
        try:
            yield
        finally:
            self._tape.calls = None

    # ------------------------------------------------------------ GEMMs

    @property
    def has_gemm(self) -> bool:
        """Whether this processor has C++ GEMMs (AVX2 or AVX-512); otherwise the BLAS multiplies."""
        return self.library is not None and "zg_gemm_nt" in self._functions

    def multiplies(self, compute: Compute) -> bool:
        """Whether our own GEMMs run."""
        return compute.gemm == "exact" and self.has_gemm

    def is_fused(self, compute: Compute) -> bool:
        """Whether our own GEMM runs in the forward, fused with the kernel before it."""
        return self.tile is None and self.multiplies(compute)

    def product(
        self, x_MI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, residual_MO: Tensor | None = None,
        out_MO: Tensor | None = None, *, compute: Compute,
    ) -> Tensor:  # fmt: skip
        """With AVX2 or AVX-512 each output has one order of additions by construction; otherwise by the BLAS."""
        if not self.is_fused(compute):
            return super().product(x_MI, weight_OI, bias_O, residual_MO, out_MO, compute=compute)
        (num_rows, width), num_out = x_MI.shape, len(weight_OI)
        if out_MO is None:
            out_MO = x_MI.new_empty(num_rows, num_out)
        x_MI, weight_OI = x_MI.contiguous(), weight_OI.contiguous()
        residual_MO = None if residual_MO is None else residual_MO.contiguous()
        self._call("zg_gemm_nt", _pointer(x_MI, num_rows, width), _pointer(weight_OI, num_out, width),
                   _pointer(bias_O, num_out), _pointer(residual_MO, num_rows, num_out),
                   _pointer(out_MO, num_rows, num_out), num_rows, num_out, width, compute.rounds_bf16,
                   *_NOTHING_NEXT)  # fmt: skip
        return out_MO

    def logits(
        self, hidden_RD: Tensor, weight_VD: Tensor, out: Tensor, *, compute: Compute
    ) -> None:
        """All chunks in one call."""
        if not self.is_fused(compute):
            super().logits(hidden_RD, weight_VD, out, compute=compute)
            return
        hidden_RD = hidden_RD.contiguous()
        (num_rows, width), num_out = hidden_RD.shape, len(weight_VD)
        shape = (-(-num_out // VOCAB_CHUNK), num_rows, VOCAB_CHUNK)
        self._call("zg_head_nt", _pointer(hidden_RD, num_rows, width),
                   _pointer(weight_VD, num_out, width), _pointer(out, *shape), num_rows, num_out, width,
                   VOCAB_CHUNK)  # fmt: skip

    def norm_product(
        self, x_TD: Tensor, norm_D: Tensor, weight_OD: Tensor, bias_O: Tensor | None, eps: float, *, compute: Compute
    ) -> Tensor:  # fmt: skip
        """One call: the same two kernels, and no tensor between them."""
        if not self.is_fused(compute):
            return super().norm_product(x_TD, norm_D, weight_OD, bias_O, eps, compute=compute)
        (num_rows, width), num_out = x_TD.shape, len(weight_OD)
        out = x_TD.new_empty(num_rows, num_out)
        self._call("zg_norm_gemm_nt", _pointer(x_TD, num_rows, width), _pointer(norm_D, width),
                   _pointer(weight_OD, num_out, width), _pointer(bias_O, num_out), _pointer(out, num_rows, num_out),
                   num_rows, num_out, width, eps, compute.rounds_bf16, *_NOTHING_NEXT)  # fmt: skip
        return out

    def swiglu_product(
        self,
        gate_up_TF2: Tensor,
        weight_OF: Tensor,
        residual_TO: Tensor | None,
        *,
        compute: Compute,
    ) -> Tensor:
        """One call: the same two kernels, and no tensor between them."""
        if not self.is_fused(compute):
            return super().swiglu_product(gate_up_TF2, weight_OF, residual_TO, compute=compute)
        (num_out, width), num_rows = weight_OF.shape, len(gate_up_TF2)
        out = gate_up_TF2.new_empty(num_rows, num_out)
        self._call("zg_swiglu_gemm_nt", _pointer(gate_up_TF2, num_rows, 2 * width), _pointer(weight_OF, num_out, width),
                   _pointer(residual_TO, num_rows, num_out), _pointer(out, num_rows, num_out), num_rows, num_out,
                   width, compute.rounds_bf16, *_NOTHING_NEXT)  # fmt: skip
        return out

    def input_gradient(
        self, grad_TO: Tensor, weight_OI: Tensor, into_TI: Tensor | None = None, *, compute: Compute
    ) -> Tensor:
        """Adds outputs in ascending order, as the forward adds inputs."""
        if not self.multiplies(compute):
            return super().input_gradient(grad_TO, weight_OI, into_TI, compute=compute)
        (num_rows, num_in), width = grad_TO.shape, weight_OI.shape[1]
        grad_TO, weight_OI = grad_TO.contiguous(), weight_OI.contiguous()
        out_TI = grad_TO.new_empty(num_rows, width) if into_TI is None else into_TI
        self._call("zg_gemm_nn", _pointer(grad_TO, num_rows, num_in),
                   _pointer(weight_OI, num_in, width), _pointer(out_TI, num_rows, width), num_rows,
                   num_in, width, into_TI is not None)  # fmt: skip
        return out_TI

    def add_weight_gradient_(
        self, buffer_OI: Tensor, grad_TO: Tensor, x_TI: Tensor, *, compute: Compute
    ) -> None:
        """Straight into the buffer."""
        if not (self.multiplies(compute) and buffer_OI.is_contiguous()):
            super().add_weight_gradient_(buffer_OI, grad_TO, x_TI, compute=compute)
            return
        (num_rows, num_out), width = grad_TO.shape, x_TI.shape[1]
        grad_TO, x_TI = grad_TO.contiguous(), x_TI.contiguous()
        columns = self._functions["zg_panel_columns"]() or 1
        panels = x_TI.new_empty(-(-width // columns) * columns * num_rows)
        self._call("zg_gemm_tn", _pointer(grad_TO, num_rows, num_out),
                   _pointer(x_TI, num_rows, width), _pointer(panels, len(panels)),
                   _pointer(buffer_OI, num_out, width), num_rows, num_out, width)  # fmt: skip

    # ------------------------------------------------------------ rows

    def embedding(self, token_ids_T: Tensor, table_VD: Tensor) -> Tensor:
        """Rows of the table.

        Raises:
            KernelError: an id outside [0, V).
        """
        (num_ids,), (num_vectors, width) = token_ids_T.shape, table_VD.shape
        out = table_VD.new_empty(num_ids, width)
        num_outside = self._call(
            "zg_embedding", _pointer(token_ids_T, num_ids, dtype=torch.int64), _pointer(table_VD, num_vectors, width),
            _pointer(out, num_ids, width), num_ids, num_vectors, width,
        )  # fmt: skip
        if num_outside:
            msg = f"{num_outside} of {num_ids} token ids are outside the vocabulary of {num_vectors} ids; use ids of the tokenizer that belongs to this model"
            raise KernelError(msg)
        return out

    def embedding_backward_(self, token_ids_T: Tensor, grad_TD: Tensor, into_VD: Tensor) -> None:
        """Rows in order."""
        (num_ids, width), num_vectors = grad_TD.shape, len(into_VD)
        self._call("zg_embedding_backward", _pointer(token_ids_T, num_ids, dtype=torch.int64),
                   _pointer(grad_TD, num_ids, width), _pointer(into_VD, num_vectors, width), num_ids,
                   width)  # fmt: skip

    def round_bf16(self, x: Tensor, out: Tensor) -> None:
        """Each element to the nearest bf16, into ``out`` of the same shape, which may be ``x``."""
        self._call("zg_round_bf16", _pointer(x, *x.shape), _pointer(out, *x.shape), x.numel())

    def rms_norm(
        self, x_TD: Tensor, weight_D: Tensor, eps: float, *, rounds_bf16: bool = False
    ) -> tuple[Tensor, Tensor]:
        """(y, 1 / rms) of each row."""
        num_rows, width = x_TD.shape
        x_TD = x_TD.contiguous()
        y, rstd = torch.empty_like(x_TD), x_TD.new_empty(num_rows)
        self._call("zg_rms_norm", _pointer(x_TD, num_rows, width), _pointer(weight_D, width),
                   _pointer(y, num_rows, width), _pointer(rstd, num_rows),
                   num_rows, width, eps, rounds_bf16)  # fmt: skip
        return y, rstd

    def rms_norm_backward(
        self, grad_TD: Tensor, x_TD: Tensor, weight_D: Tensor, rstd_T: Tensor, *, needs_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(dx, dweight)."""
        num_rows, width = x_TD.shape
        x_TD, grad_TD = x_TD.contiguous(), grad_TD.contiguous()
        dx, dw = torch.empty_like(x_TD), torch.empty_like(weight_D) if needs_weight else None
        self._call("zg_rms_norm_backward", _pointer(grad_TD, num_rows, width), _pointer(x_TD, num_rows, width),
                   _pointer(weight_D, width), _pointer(rstd_T, num_rows), _pointer(dx, num_rows, width),
                   _pointer(dw, width), num_rows, width)  # fmt: skip
        return dx, dw

    def swiglu(self, gate_up_TF2: Tensor, *, rounds_bf16: bool = False) -> Tensor:
        """[T, 2F] -> [T, F]."""
        num_rows, width = len(gate_up_TF2), gate_up_TF2.shape[1] // 2
        y = gate_up_TF2.new_empty(num_rows, width)
        self._call("zg_swiglu", _pointer(gate_up_TF2, num_rows, 2 * width), _pointer(y, num_rows, width),
                   num_rows, width, rounds_bf16)  # fmt: skip
        return y

    def swiglu_backward(self, grad_TF: Tensor, gate_up_TF2: Tensor) -> Tensor:
        """Gradient of ``[gate | up]``."""
        num_rows, width = grad_TF.shape
        grad, d_gate_up = grad_TF.contiguous(), torch.empty_like(gate_up_TF2)
        self._call("zg_swiglu_backward", _pointer(grad, num_rows, width), _pointer(gate_up_TF2, num_rows, 2 * width),
                   _pointer(d_gate_up, num_rows, 2 * width), num_rows, width)  # fmt: skip
        return d_gate_up

    def rope_tables(self, inv_freq_h: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """(cos, sin), each [T, H/2]."""
        num_rows, half = len(positions_T), len(inv_freq_h)
        cos, sin = inv_freq_h.new_empty(num_rows, half), inv_freq_h.new_empty(num_rows, half)
        self._call("zg_rope_tables", _pointer(inv_freq_h, half), _pointer(positions_T, num_rows, dtype=torch.int64),
                   _pointer(cos, num_rows, half), _pointer(sin, num_rows, half),
                   num_rows, half)  # fmt: skip
        return cos, sin

    def qkv_rope(
        self, qkv_TE: Tensor, cos_Th: Tensor, sin_Th: Tensor, q_norm_H: Tensor | None, k_norm_H: Tensor | None,
        num_heads: int, num_kv_heads: int, eps: float, *, rounds_bf16: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """See ``rowwise.qkv_rope``."""
        num_rows, half = len(qkv_TE), cos_Th.shape[1]
        q_shape, kv_shape = (num_rows, num_heads, 2 * half), (num_rows, num_kv_heads, 2 * half)
        q, k, v = (qkv_TE.new_empty(shape) for shape in (q_shape, kv_shape, kv_shape))
        width = (num_heads + 2 * num_kv_heads) * 2 * half
        self._call("zg_qkv_rope", _pointer(qkv_TE, num_rows, width), _pointer(cos_Th, num_rows, half),
                   _pointer(sin_Th, num_rows, half), _pointer(q_norm_H, 2 * half), _pointer(k_norm_H, 2 * half),
                   _pointer(q, *q_shape), _pointer(k, *kv_shape), _pointer(v, *kv_shape), num_rows,
                   num_heads, num_kv_heads, 2 * half, eps, rounds_bf16)  # fmt: skip
        return q, k, v

    def qkv_rope_backward(
        self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv_TE: Tensor | None, cos_Th: Tensor, sin_Th: Tensor,
        q_norm_H: Tensor | None, k_norm_H: Tensor | None, eps: float, *, needs_norms: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """(dqkv, dq_norm, dk_norm)."""
        grad_q, grad_k, grad_v = grad_q.contiguous(), grad_k.contiguous(), grad_v.contiguous()
        (num_rows, num_heads, head_dim), num_kv_heads = grad_q.shape, grad_k.shape[1]
        kv_shape, half = (num_rows, num_kv_heads, head_dim), head_dim // 2
        width = (num_heads + 2 * num_kv_heads) * head_dim
        dqkv = grad_q.new_empty(num_rows, width)
        dw = grad_q.new_empty(2, head_dim) if needs_norms else None
        self._call("zg_qkv_rope_backward", _pointer(grad_q, num_rows, num_heads, head_dim),
                   _pointer(grad_k, *kv_shape), _pointer(grad_v, *kv_shape), _pointer(qkv_TE, num_rows, width),
                   _pointer(cos_Th, num_rows, half), _pointer(sin_Th, num_rows, half), _pointer(q_norm_H, head_dim),
                   _pointer(k_norm_H, head_dim), _pointer(dqkv, num_rows, width),
                   _pointer(dw, 2, head_dim), num_rows, num_heads, num_kv_heads, head_dim, eps)  # fmt: skip
        return (dqkv, None, None) if dw is None else (dqkv, dw[0], dw[1])

    # ------------------------------------------------------------ attention

    def write_kv(
        self, k_TKH: Tensor, v_TKH: Tensor | None, slots_W: Tensor, k_PKHS: Tensor, v_PKSH: Tensor | None,
        rows_W: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Splits the writes over threads. Without v and its pages, writes k alone."""
        num_rows, num_kv_heads, head_dim = k_TKH.shape
        num_pages, num_slots = len(k_PKHS), num_rows if rows_W is None else len(rows_W)
        self._call("zg_write_kv", _pointer(k_TKH, num_rows, num_kv_heads, head_dim),
                   _pointer(v_TKH, num_rows, num_kv_heads, head_dim), _pointer(rows_W, num_slots, dtype=torch.int64),
                   _pointer(slots_W, num_slots, dtype=torch.int64), num_slots,
                   _pointer(k_PKHS, num_pages, num_kv_heads, head_dim, PAGE_SIZE),
                   _pointer(v_PKSH, num_pages, num_kv_heads, PAGE_SIZE, head_dim), num_kv_heads,
                   head_dim)  # fmt: skip

    def _filled_pages(
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
        """int32 array of ``cpp/attention_plan.h``: the first layer of a plan computes it, all layers use it.

        Raises:
            KernelError: a row reads an entry past the page table, or a page that does not exist.
        """
        # A captured graph must contain the call that computes the work: a capture reuses none from before.
        is_capturing, num_threads = self._tape.calls is not None, torch.get_num_threads()
        key = num_rows, num_pages, num_heads, num_kv_heads, head_dim, num_threads, is_capturing
        if key in plan.work:
            return plan.work[key]
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
        assert row != -2, "_most_work is too small"
        if row >= 0:
            sequence, position = int(plan.row_sequence_T[row]), int(plan.row_position_T[row])
            msg = f"query row {row} reads position {position} of sequence {sequence}, which needs a page that does not exist: the page table is {num_sequences} x {width} and there are {num_pages} pages of {PAGE_SIZE}; pass a table that covers every row"
            raise KernelError(msg)
        plan.work[key] = work
        return work

    def paged_attention(
        self, q_TNH: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, plan: AttentionPlan, scale: float
    ) -> Tensor:
        """Rows that share leading pages form one block."""
        if not self.handles_head_dim(q_TNH.shape[-1]):
            return super().paged_attention(q_TNH, k_PKHS, v_PKSH, plan, scale)
        return self._attend(q_TNH, k_PKHS, v_PKSH, plan, scale, with_lse=False)[0]

    def packed_attention(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout, scale: float
    ) -> tuple[Tensor, Tensor | None]:
        """Keeps the log-sum-exp of each row and head, [T, N]."""
        if not self.handles_head_dim(q_TNH.shape[-1]):
            return super().packed_attention(q_TNH, k_TKH, v_TKH, layout, scale)
        pages = self._filled_pages(k_TKH, v_TKH, layout)
        return self._attend(q_TNH, *pages, layout.plan, scale, with_lse=True)

    def _attend(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, plan: AttentionPlan, scale: float, *, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """(out [T, N, H], log-sum-exp [T, N] or None)."""
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
        self, grad_TNH: Tensor, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, out_TNH: Tensor, kept: Tensor | None,
        layout: PackedLayout, scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """(dq, dk, dv) of packed rows; the same bits for every number of threads."""
        if kept is None:
            return super().packed_attention_backward(
                grad_TNH, q_TNH, k_TKH, v_TKH, out_TNH, kept, layout, scale
            )
        (num_rows, num_heads, head_dim), num_kv_heads = q_TNH.shape, k_TKH.shape[1]
        grad, k, v = grad_TNH.contiguous(), k_TKH.contiguous(), v_TKH.contiguous()
        # The backward also reads keys as [S, H] and values as [H, S].
        k_by_dim, k_by_slot = self._filled_pages(k, k, layout)
        v_by_dim = torch.zeros_like(k_by_dim)
        self.write_kv(v, None, layout.write_slot_W, v_by_dim, None, layout.write_row_W)
        dk_pages, dv_pages = torch.zeros_like(k_by_slot), torch.zeros_like(k_by_slot)
        dq, dk, dv = torch.zeros_like(q_TNH), torch.zeros_like(k), torch.zeros_like(v)
        by_row, by_dim, by_slot = q_TNH.shape, k_by_dim.shape, k_by_slot.shape
        work = self.attention_work(layout.plan, num_rows=num_rows, num_pages=layout.num_pages, num_heads=num_heads,
                                   num_kv_heads=num_kv_heads, head_dim=head_dim)  # fmt: skip
        self._call("zg_packed_attention_backward", _pointer(grad, *by_row), _pointer(q_TNH, *by_row),
                   _pointer(out_TNH, *by_row), _pointer(kept, num_rows, num_heads), _pointer(k_by_dim, *by_dim),
                   _pointer(k_by_slot, *by_slot), _pointer(v_by_dim, *by_dim), work.data_ptr(),
                   _pointer(dq, *by_row), _pointer(dk_pages, *by_slot), _pointer(dv_pages, *by_slot),
                   layout.num_pages, num_heads, num_kv_heads, head_dim, scale)  # fmt: skip
        num_slots = len(layout.write_row_W)
        for pages, rows in ((dk_pages, dk), (dv_pages, dv)):
            self._call("zg_gather_slots", _pointer(pages, *by_slot),
                       _pointer(layout.write_row_W, num_slots, dtype=torch.int64),
                       _pointer(layout.write_slot_W, num_slots, dtype=torch.int64), num_slots,
                       _pointer(rows, num_rows, num_kv_heads, head_dim), num_kv_heads, head_dim)  # fmt: skip
        return dq, dk, dv

    # ------------------------------------------------------------ head

    def add_chunk(
        self, logits_RC: Tensor, temperature_R: Tensor, stats: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """In place."""
        num_rows, width = logits_RC.shape
        self._call("zg_add_chunk", _pointer(logits_RC, num_rows, width), num_rows, width,
                   _pointer(temperature_R, num_rows), *(_pointer(column, num_rows) for column in stats))  # fmt: skip

    def log_sum_exp(self, peak_R: Tensor, mass_R: Tensor) -> Tensor:
        """Same bits as in the sampler."""
        num_rows, lse = len(peak_R), torch.empty_like(peak_R)
        self._call("zg_log_sum_exp", _pointer(peak_R, num_rows), _pointer(mass_R, num_rows), _pointer(lse, num_rows),
                   num_rows)  # fmt: skip
        return lse

    def logits_gradient_(
        self, logits_RC: Tensor, temperature_R: Tensor, lse_R: Tensor, grad_R: Tensor,
        entropy: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """One pass over the chunk, with or without the entropy's gradient."""
        (num_rows, width), grad_R = logits_RC.shape, grad_R.contiguous()
        entropy_R, grad_entropy_R = (
            (None, None) if entropy is None else (x.contiguous() for x in entropy)
        )
        self._call("zg_logits_gradient", _pointer(logits_RC, num_rows, width), num_rows, width,
                   _pointer(temperature_R, num_rows), _pointer(lse_R, num_rows), _pointer(grad_R, num_rows),
                   _pointer(entropy_R, num_rows), _pointer(grad_entropy_R, num_rows))  # fmt: skip

    def sample(
        self, logits: Tensor, which_R: Tensor, vocab_limit: int, rows: SamplingRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One pass over each row; applies edits in place to ``logits``."""
        if len(rows.edit_ids) and int(rows.edit_ids.min()) < 0:
            msg = f"edit_ids hold {int(rows.edit_ids.min())}, which is not a token id; edit ids from 0 on"
            raise KernelError(msg)
        num_chunks, num_logits = -(-vocab_limit // VOCAB_CHUNK), logits.shape[1]
        num_rows = len(which_R)
        token = torch.empty(num_rows, dtype=torch.int64)
        log_prob, kept = torch.empty(num_rows), torch.empty(num_rows)
        num_edits = len(rows.edit_ids)
        self._call("zg_sample", _pointer(logits, num_chunks, num_logits, VOCAB_CHUNK),
                   _pointer(which_R, num_rows, dtype=torch.int64), num_rows, num_logits, vocab_limit,
                   _pointer(rows.temperature_R, num_rows), _pointer(rows.greedy_R, num_rows, dtype=torch.bool),
                   _pointer(rows.top_k_R, num_rows, dtype=torch.int32), _pointer(rows.top_p_R, num_rows),
                   _pointer(rows.min_p_R, num_rows), _pointer(rows.uniform_R, num_rows, dtype=torch.float64),
                   _pointer(rows.edit_offsets, num_rows + 1, dtype=torch.int64),
                   _pointer(rows.edit_ids, num_edits, dtype=torch.int32), _pointer(rows.edit_scale, num_edits),
                   _pointer(rows.edit_add, num_edits), _pointer(token, num_rows, dtype=torch.int64),
                   _pointer(log_prob, num_rows), _pointer(kept, num_rows))  # fmt: skip
        return token, log_prob, kept


native = NativeKernels()
"""The kernels of this process."""
