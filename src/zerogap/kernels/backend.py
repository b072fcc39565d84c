"""What a backend of kernels must do: the contract of every operation, forward and backward.

The public functions of this room (``linear``, ``rms_norm``, ``log_probs`` ...) check their arguments, know autograd and
say what is kept for the backward pass. They compute nothing: they ask ``backend_of`` for the backend of their tensors and
call the operations below. A new backend is a class with these methods and a line in ``choice.py``; the test suite of the
functions runs on it by being given its name.

For every operation:

- All tensors are on one device and contiguous, of one floating dtype unless another is named; ids and indices are int64.
- A row of a result depends on the same row of the arguments alone: its bits are the same beside any other rows, at any
  place. How a backend adds up is its own affair as long as the order is a function of the row (``docs/numerics.md``).
- Nothing waits for the device: no operation reads a value of a tensor to decide what to do.
- Gradients to a row belong to that row; gradients to a weight are a sum over rows, whose order may depend on their number.
- With ``Compute.rounds_bf16`` what is returned is rounded to bf16 values in the same dtype, once, after the last addition.

Letters: M or T rows, I in and O out of a product, D model dim, F feed-forward dim, E width of q, k and v together, N query
heads, K key/value heads, H head dim, h = H / 2, P pages, S slots a page (16), W writes, R rows of the head, V vocabulary,
C columns of a chunk of it.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from zerogap.kernels.layout import AttentionPlan, PackedLayout
from zerogap.kernels.sampling_rows import SamplingRows

Gemm = Literal["exact", "blas"]
"""exact: a row's bits do not depend on the rows beside it (our own products, or a BLAS as the probe settled it);
blas: the library's product of all rows at once, forward and backward, whose bits depend on their number."""


@dataclass(frozen=True)
class Compute:
    """How a pass computes. An argument of the forward; its backward does the same.

    An engine and a trainer that share one model may have two of them, which is what ``numerics = "fast"`` allows.
    """

    gemm: Gemm = "exact"
    """Which GEMMs run."""
    rounds_bf16: bool = False
    """Round what passes between operations to bf16 values, in fp32 tensors: the model's precision where a processor has
    no fast bf16 products. Tensors whose dtype is bf16 need no rounding."""
    adds_to_grad: bool = False
    """The backward adds gradients of matrices to a ``.grad`` that is there, in place (``gradients.gradient_target``). For
    ``backward()`` only: ``torch.autograd.grad`` would get what ``.grad`` held as well."""


PLAIN = Compute()
"""Exact products, the tensors' own precision, gradients as autograd makes them."""


@runtime_checkable
class Backend(Protocol):
    """The operations of one kind of device."""

    name: str
    tile: int | None
    """Rows of every call of a library that does not keep a row's bits over row counts; None: it does, or none is called.
    Set by the start-up probe."""

    def takes(self, tensor: Tensor) -> bool:
        """Whether this backend computes on tensors like this one; the torch backend does otherwise."""
        ...

    # ------------------------------------------------------------ GEMMs

    def product(
        self, x_MI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, residual_MO: Tensor | None = None,
        out_MO: Tensor | None = None, *, compute: Compute,
    ) -> Tensor:  # fmt: skip
        """``residual + (x @ weight.T + bias)``, into ``out_MO`` if given, whose dtype may be wider.

        Bias and residual are added to the finished product, one rounding each.
        """
        ...

    def norm_product(
        self, x_TD: Tensor, norm_D: Tensor, weight_OD: Tensor, bias_O: Tensor | None, eps: float, *, compute: Compute
    ) -> Tensor:  # fmt: skip
        """``product(rms_norm(x))`` with the bits of one after the other; nothing is kept."""
        ...

    def swiglu_product(
        self,
        gate_up_TF2: Tensor,
        weight_OF: Tensor,
        residual_TO: Tensor | None,
        *,
        compute: Compute,
    ) -> Tensor:
        """``product(swiglu(gate_up))`` with the bits of one after the other; nothing is kept."""
        ...

    def input_gradient(
        self, grad_TO: Tensor, weight_OI: Tensor, into_TI: Tensor | None = None, *, compute: Compute
    ) -> Tensor:
        """``grad @ weight``: [T, O], [O, I] -> [T, I]; added to ``into_TI`` if given."""
        ...

    def add_weight_gradient_(
        self, buffer_OI: Tensor, grad_TO: Tensor, x_TI: Tensor, *, compute: Compute
    ) -> None:
        """``buffer += grad.T @ x``: rows in blocks of 256, ascending, then one addition to the buffer."""
        ...

    # ------------------------------------------------------------ rows

    def embedding(self, token_ids_T: Tensor, table_VD: Tensor) -> Tensor:
        """Rows of the table. An id outside [0, V) is an error."""
        ...

    def embedding_backward_(self, token_ids_T: Tensor, grad_TD: Tensor, into_VD: Tensor) -> None:
        """``into[token_ids] += grad``, row by row."""
        ...

    def round_bf16(self, x: Tensor, out: Tensor) -> None:
        """Each element to the nearest bf16, ties to even, into ``out``, which may be ``x``. NaN and infinity stay."""
        ...

    def rms_norm(
        self, x_TD: Tensor, weight_D: Tensor, eps: float, *, rounds_bf16: bool = False
    ) -> tuple[Tensor, Tensor]:
        """``x / sqrt(mean(x^2) + eps) * weight``, and 1 / sqrt(...) as [T], which the backward takes."""
        ...

    def rms_norm_backward(
        self, grad_TD: Tensor, x_TD: Tensor, weight_D: Tensor, rstd_T: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of x, and of the weight, which is summed in float64."""
        ...

    def swiglu(self, gate_up_TF2: Tensor, *, rounds_bf16: bool = False) -> Tensor:
        """``silu(gate) * up`` of ``[gate | up]``: [T, 2F] -> [T, F]."""
        ...

    def swiglu_backward(self, grad_TF: Tensor, gate_up_TF2: Tensor) -> Tensor:
        """Gradient of ``[gate | up]``."""
        ...

    def rope_tables(self, inv_freq_h: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of position * frequency, rounded to fp32 before and after: [T, h] each."""
        ...

    def qkv_rope(
        self, qkv_TE: Tensor, cos_Th: Tensor, sin_Th: Tensor, q_norm_H: Tensor | None, k_norm_H: Tensor | None,
        num_heads: int, num_kv_heads: int, eps: float, *, rounds_bf16: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Q [T, N, H], k [T, K, H] and v [T, K, H] of ``[q | k | v]``; q and k normalised if asked, then rotated."""
        ...

    def qkv_rope_backward(
        self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv_TE: Tensor | None, cos_Th: Tensor, sin_Th: Tensor,
        q_norm_H: Tensor | None, k_norm_H: Tensor | None, eps: float,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """Gradients of ``[q | k | v]`` and of the two norms, which are summed in float64. ``qkv_TE`` only with norms."""
        ...

    # ------------------------------------------------------------ attention

    def write_kv(
        self, k_TKH: Tensor, v_TKH: Tensor, slots_W: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, rows_W: Tensor | None = None
    ) -> None:  # fmt: skip
        """Row ``rows_W[w]`` (or w) of k and v to slot ``slots_W[w]`` of the pages; -1 is skipped."""
        ...

    def paged_attention(
        self, q_TNH: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, plan: AttentionPlan, scale: float
    ) -> Tensor:
        """Each row over its own pages, keys in absolute order, one accumulation a row; a row at -1 gives 0."""
        ...

    def packed_attention(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout, scale: float
    ) -> tuple[Tensor, Tensor | None]:
        """``paged_attention`` over pages filled from the rows, with its bits; and what the backward keeps beside it."""
        ...

    def packed_attention_backward(
        self, grad_TNH: Tensor, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, out_TNH: Tensor, kept: Tensor | None,
        layout: PackedLayout, scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of q, k and v."""
        ...

    # ------------------------------------------------------------ head

    def logits(
        self, hidden_RD: Tensor, weight_VD: Tensor, out: Tensor, *, compute: Compute
    ) -> None:
        """All logits into chunks [chunks, R, VOCAB_CHUNK], float32; the last one is packed to its own width."""
        ...

    def add_chunk(
        self, logits_RC: Tensor, temperature_R: Tensor, local_target_R: Tensor, stats: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> None:  # fmt: skip
        """One chunk of logits / T into the running (peak, mass, moment, target logit), in place.

        A target outside the chunk leaves the target logit as it is.
        """
        ...

    def log_sum_exp(self, peak_R: Tensor, mass_R: Tensor) -> Tensor:
        """``peak + log(mass)``, the logarithm in float64."""
        ...

    def logits_gradient_(
        self,
        logits_RC: Tensor,
        temperature_R: Tensor,
        lse_R: Tensor,
        local_target_R: Tensor,
        grad_R: Tensor,
    ) -> None:
        """A chunk of logits to d(sum grad * log_prob)/d(logits), in place."""
        ...

    def sample(
        self, logits: Tensor, which_R: Tensor, vocab_limit: int, rows: SamplingRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(token, log-prob, log mass of what could be drawn) of each draw from ``logits``; see ``sampling.sample_tokens``.

        A log-prob has the bits that ``add_chunk`` and ``log_sum_exp`` give to the token: its logit / T less the latter.

        Draw r reads row ``which_R[r]``; one with edits reads a row that no other draw reads.
        A row without a distribution (NaN, infinity, every id banned) gets token -1 and NaN.
        """
        ...
