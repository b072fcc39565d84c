"""The contract of a kernel backend: every operation, forward and backward.

The public functions of this room (``linear``, ``rms_norm``, ``log_probs`` ...) check their arguments, handle autograd
and document what is kept for the backward pass. They compute nothing themselves: ``backend_of`` finds the backend of
their tensors, and they call the operations below. To add a backend, write a class with these methods and add a line to
``choice.py``; the functions' test suite then runs on it when given its name.

For every operation:

- All tensors are contiguous, on one device, of one floating dtype unless another is named; ids and indices are int64.
- Batch-invariant: a row of a result depends only on the same row of the arguments. Its bits are the same beside any
  other rows, at any place. A backend may add in any order that is a function of the row (``docs/numerics.md``).
- Nothing waits for the device: no operation reads a value of a tensor to decide what to do.
- The gradient of a row depends on that row alone. The gradient of a weight is a sum over rows, and its order may
  depend on their number.
- With ``Compute.rounds_bf16`` the result is rounded to bf16 values in the same dtype, once, after the last addition.

Letters: M or T rows, I inputs and O outputs of a GEMM, D model dim, F feed-forward dim, E width of q, k and v together,
N query heads, K key/value heads, H head dim, h = H / 2, P pages, S slots per page (16), W writes, R rows of the head,
V vocabulary, C columns of a vocabulary chunk.
"""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import Tensor

from zerogap.kernels.layout import AttentionPlan, PackedLayout

Gemm = Literal["exact", "blas"]
"""exact: batch-invariant GEMMs, either our own kernels or a BLAS with the row tiling that the start-up probe chose;
blas: one library GEMM over all rows, forward and backward; a row's bits depend on the number of rows."""


@dataclass(frozen=True)
class Compute:
    """How a pass computes. The forward takes it as an argument, and its backward computes the same way.

    Engine and trainer may use different ones on one shared model: ``numerics = "fast"`` allows it.
    """

    gemm: Gemm = "exact"
    """Which GEMMs run."""
    rounds_bf16: bool = False
    """Round what passes between operations to bf16 values, in fp32 tensors: bf16 precision on a processor without fast
    bf16 GEMMs. Tensors whose dtype is bf16 need no rounding."""
    adds_to_grad: bool = False
    """The backward adds gradients of matrices in place to an existing ``.grad`` (``gradients.gradient_target``). For
    ``backward()`` only: ``torch.autograd.grad`` would also return what ``.grad`` held before."""


PLAIN = Compute()
"""Batch-invariant GEMMs, the tensors' own precision, gradients as autograd returns them."""


@dataclass(frozen=True)
class SamplingRows:
    """How each of R rows draws its token. Edits are a CSR list of (id, scale, add) per row."""

    temperature_R: Tensor
    """float32 [R], positive; 1 for greedy rows."""
    greedy_R: Tensor
    """bool [R]: take the largest logit (lowest id on ties)."""
    top_k_R: Tensor
    """int32 [R]; -1 keeps all."""
    top_p_R: Tensor
    """float32 [R]; 1 keeps all."""
    min_p_R: Tensor
    """float32 [R]; 0 keeps all."""
    uniform_R: Tensor
    """float64 [R] in [0, 1): the noise."""
    edit_offsets: Tensor
    """int64 [R + 1]: row r's edits are [offsets[r], offsets[r + 1])."""
    edit_ids: Tensor
    """int32 [E], 0 or more: each id at most once per row; ids at or past ``vocab_limit`` have no effect."""
    edit_scale: Tensor
    """float32 [E]: logit / scale if positive, else logit * scale (repetition penalty); 1 changes nothing."""
    edit_add: Tensor
    """float32 [E]: added after scaling; -inf bans the id."""


@runtime_checkable
class Backend(Protocol):
    """The operations of one kind of device."""

    name: str
    tile: int | None
    """Rows per call of a BLAS whose bits depend on the number of rows; None: no tiling is needed. The start-up probe
    sets it."""

    def takes(self, tensor: Tensor) -> bool:
        """Whether this backend computes on tensors like this one; otherwise the torch backend does."""
        ...

    # ------------------------------------------------------------ GEMMs

    def product(
        self, x_MI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None, residual_MO: Tensor | None = None,
        out_MO: Tensor | None = None, *, compute: Compute,
    ) -> Tensor:  # fmt: skip
        """``residual + (x @ weight.T + bias)``, into ``out_MO`` if given, whose dtype may be wider.

        Bias and residual are added to the finished GEMM, one rounding each.
        """
        ...

    def norm_product(
        self, x_TD: Tensor, norm_D: Tensor, weight_OD: Tensor, bias_O: Tensor | None, eps: float, *, compute: Compute
    ) -> Tensor:  # fmt: skip
        """``product(rms_norm(x))``, same bits as the two calls in turn; keeps nothing."""
        ...

    def swiglu_product(
        self,
        gate_up_TF2: Tensor,
        weight_OF: Tensor,
        residual_TO: Tensor | None,
        *,
        compute: Compute,
    ) -> Tensor:
        """``product(swiglu(gate_up))``, same bits as the two calls in turn; keeps nothing."""
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
        """Round to the nearest bf16, ties to even, into ``out``, which may be ``x``. Keeps NaN and infinity."""
        ...

    def rms_norm(
        self, x_TD: Tensor, weight_D: Tensor, eps: float, *, rounds_bf16: bool = False
    ) -> tuple[Tensor, Tensor]:
        """``x / sqrt(mean(x^2) + eps) * weight``, and 1 / sqrt(...) as [T] for the backward."""
        ...

    def rms_norm_backward(
        self, grad_TD: Tensor, x_TD: Tensor, weight_D: Tensor, rstd_T: Tensor, *, needs_weight: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Gradients of x and, if needed, of the weight, summed in float64."""
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
        """Split ``[q | k | v]`` into [T, N, H] and twice [T, K, H]; normalise q and k if norms are given; rotate."""
        ...

    def qkv_rope_backward(
        self, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, qkv_TE: Tensor | None, cos_Th: Tensor, sin_Th: Tensor,
        q_norm_H: Tensor | None, k_norm_H: Tensor | None, eps: float, *, needs_norms: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """Gradients of ``[q | k | v]`` and, if needed, of the norms, summed in float64. Only norms need ``qkv_TE``."""
        ...

    # ------------------------------------------------------------ attention

    def write_kv(
        self, k_TKH: Tensor, v_TKH: Tensor, slots_W: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, rows_W: Tensor | None = None
    ) -> None:  # fmt: skip
        """Write row ``rows_W[w]`` (or w) of k and v to slot ``slots_W[w]`` of the pages; -1 is skipped."""
        ...

    def paged_attention(
        self, q_TNH: Tensor, k_PKHS: Tensor, v_PKSH: Tensor, plan: AttentionPlan, scale: float
    ) -> Tensor:
        """Attention of each row over its own pages: keys in absolute order, one accumulator; a row at -1 gives 0."""
        ...

    def packed_attention(
        self, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, layout: PackedLayout, scale: float
    ) -> tuple[Tensor, Tensor | None]:
        """``paged_attention`` over pages filled from the rows, same bits; and what it keeps for the backward."""
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
        """Write all logits as float32 chunks [chunks, R, VOCAB_CHUNK]; the last chunk is packed to its own width."""
        ...

    def add_chunk(
        self, logits_RC: Tensor, temperature_R: Tensor, stats: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Add one chunk of logits / T to the running (peak, mass, moment), in place."""
        ...

    def log_sum_exp(self, peak_R: Tensor, mass_R: Tensor) -> Tensor:
        """``peak + log(mass)``, the logarithm in float64."""
        ...

    def logits_gradient_(
        self, logits_RC: Tensor, temperature_R: Tensor, lse_R: Tensor, grad_R: Tensor,
        entropy: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        """Turn a chunk of logits into d(-sum grad * log_sum_exp)/d(logits), in place.

        ``entropy`` is the entropy of each row and its gradient, float32 [R] each: d(sum gradient * entropy)/d(logits) is
        added. A gradient of 0 adds exactly 0. A logit of -inf gets 0.
        """
        ...

    def sample(
        self, logits: Tensor, which_R: Tensor, vocab_limit: int, rows: SamplingRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(token, log-prob, log mass of the set to draw from) of each draw; see ``sampling.sample_tokens``.

        A log-prob is the token's logit / T minus the log-sum-exp, with the bits of ``add_chunk`` and ``log_sum_exp``.
        Draw r reads row ``which_R[r]``; no other draw may read the row of a draw with edits.
        A row without a distribution (NaN, infinity, every id banned) gets token -1 and NaN.
        """
        ...
