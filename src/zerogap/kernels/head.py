"""The language-model head: log-probs of given ids in vocabulary chunks, without a [R, V] tensor.

``log_probs_of`` is this project's only definition of a token's log-prob: the engine's sampler uses the same chunks and
the same statistics, so both sides agree to the bit.

R rows, D model dim, V vocabulary, C columns of a chunk, K ids per row.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels.backend import PLAIN, Backend, Compute
from zerogap.kernels.choice import backend_of
from zerogap.kernels.constants import VOCAB_CHUNK
from zerogap.kernels.gradients import first_order, gradient_target


@dataclass(frozen=True)
class Head:
    """The language-model head: logits are ``hidden @ weight.T`` over ids ``[0, vocab_limit)``."""

    weight_VD: Tensor
    vocab_limit: int
    """Ids at or past it are padding of the vocabulary: they are never drawn and have no probability."""

    def __post_init__(self) -> None:
        """Refuse a limit outside the rows of the weight."""
        if not 1 <= self.vocab_limit <= len(self.weight_VD):
            msg = f"vocab_limit {self.vocab_limit} with a head of {len(self.weight_VD)} rows: there are no logits for those ids; use a limit between 1 and the number of rows"
            raise KernelError(msg)


def log_probs(
    hidden_RD: Tensor,
    head: Head,
    target_R: Tensor,
    temperature_R: Tensor,
    *,
    compute: Compute = PLAIN,
) -> tuple[Tensor, Tensor]:
    """``log_probs_of`` one id per row: log-probs [R] of int64 ``target_R``, and the entropy."""
    log_probs_R1, entropy_R = log_probs_of(
        hidden_RD, head, target_R[:, None], temperature_R, compute=compute
    )
    return log_probs_R1[:, 0], entropy_R


def log_probs_with_squares(
    hidden_RD: Tensor,
    head: Head,
    target_R: Tensor,
    temperature_R: Tensor,
    *,
    compute: Compute = PLAIN,
) -> tuple[Tensor, Tensor, Tensor]:
    """``log_probs`` with the same bits, and each row's sum of squared probabilities, float32 [R] without gradient.

    ``1 - 2 * p + squares``, p the target's probability, is the squared norm of the gradient of its log-prob by logits / T.
    """
    log_probs_R1, entropy_R, squares_R = _statistics_of(
        hidden_RD, head, target_R[:, None], temperature_R, compute=compute, with_squares=True
    )
    return log_probs_R1[:, 0], entropy_R, squares_R


def log_probs_of(
    hidden_RD: Tensor,
    head: Head,
    ids_RK: Tensor,
    temperature_R: Tensor,
    *,
    compute: Compute = PLAIN,
) -> tuple[Tensor, Tensor]:
    """``log_softmax(hidden @ head.T / T)[ids]`` over the head's ids, and the entropy.

    Args:
        hidden_RD: float32 [R, D] rows after the final norm; differentiable.
        head: its weight is differentiable.
        ids_RK: int64 [R, K] ids of the head; an id that occurs twice in a row gives two outputs.
        temperature_R: float32 [R], positive.
        compute: how to compute; logits are never rounded.

    Returns:
        log-probs float32 [R, K] in nats, NaN for an id outside the head's ids, and the entropy of each row's
        distribution, float32 [R] in nats. Both are differentiable; one pass over the chunks gives both gradients.

    Raises:
        KernelError: there are ids for another number of rows.
    """
    log_probs_RK, entropy_R = _statistics_of(
        hidden_RD, head, ids_RK, temperature_R, compute=compute, with_squares=False
    )
    return log_probs_RK, entropy_R


def _statistics_of(
    hidden_RD: Tensor, head: Head, ids_RK: Tensor, temperature_R: Tensor, *, compute: Compute, with_squares: bool
) -> tuple[Tensor, ...]:  # fmt: skip
    """(log-probs [R, K], entropy [R]), and the sums of squared probabilities [R] if they are asked for."""
    if len(ids_RK) != len(hidden_RD):
        msg = f"ids for {len(ids_RK)} rows were given with {len(hidden_RD)} rows of hidden states; pass ids for every row"
        raise KernelError(msg)
    backend = backend_of(hidden_RD, head.weight_VD, ids_RK, temperature_R)
    return _LogProbsOf.apply(
        backend, compute, hidden_RD, head.weight_VD, ids_RK, temperature_R, head.vocab_limit, with_squares
    )  # fmt: skip


class _LogProbsOf(torch.autograd.Function):
    """Forward keeps the log-sum-exp and the entropy of each row; backward recomputes each chunk of logits."""

    @staticmethod
    def forward(ctx, backend, compute, hidden_RD, weight_VD, ids_RK, temperature_R, vocab_limit, with_squares):  # noqa: ANN001, ANN205  # fmt: skip
        stats = Statistics(backend, hidden_RD)
        squared = Statistics(backend, hidden_RD) if with_squares else None
        scaled_RK = hidden_RD.new_full(ids_RK.shape, torch.nan, dtype=torch.float32)
        for begin, chunk_RC in logit_chunks(backend, compute, hidden_RD, weight_VD, vocab_limit):
            stats.add_chunk(chunk_RC, temperature_R)
            if squared is not None:
                squared.add_chunk(chunk_RC, temperature_R / 2)
            column_RK, is_inside_RK = _columns(ids_RK, begin, chunk_RC.shape[1])
            found_RK = chunk_RC.gather(1, column_RK) / temperature_R[:, None]
            scaled_RK = torch.where(is_inside_RK, found_RK, scaled_RK)
        lse_R = stats.log_sum_exp()
        entropy_R = stats.entropy(lse_R)
        ctx.save_for_backward(hidden_RD, weight_VD, ids_RK, temperature_R, lse_R, entropy_R)
        ctx.backend, ctx.compute, ctx.vocab_limit = backend, compute, vocab_limit
        ctx.set_materialize_grads(False)
        log_probs_RK = scaled_RK - lse_R[:, None]
        if squared is None:
            return log_probs_RK, entropy_R
        squares_R = stats.squares(squared)
        ctx.mark_non_differentiable(squares_R)
        return log_probs_RK, entropy_R, squares_R

    @staticmethod
    @first_order
    def backward(ctx, grad_RK, grad_entropy_R, *_squares_have_none):  # noqa: ANN001, ANN002, ANN205
        hidden_RD, weight_VD, ids_RK, temperature_R, lse_R, entropy_R = ctx.saved_tensors
        backend, compute = ctx.backend, ctx.compute
        needs_hidden, needs_weight = ctx.needs_input_grad[2:4]
        grad_hidden_RD = torch.zeros_like(hidden_RD) if needs_hidden else None
        into_VD, grad_weight_VD = gradient_target(weight_VD, compute) if needs_weight else (None, None)  # fmt: skip
        if grad_RK is None:
            grad_RK = lse_R.new_zeros(ids_RK.shape)
        entropy = None if grad_entropy_R is None else (entropy_R, grad_entropy_R)
        # The gradient of every id's log-prob has the same -softmax term; the id's own column adds its gradient.
        total_R, per_logit_RK = grad_RK.double().sum(1).float(), grad_RK / temperature_R[:, None]
        chunks = logit_chunks(backend, compute, hidden_RD, weight_VD, ctx.vocab_limit)
        for begin, chunk_RC in chunks:
            backend.logits_gradient_(chunk_RC, temperature_R, lse_R, total_R, entropy)
            column_RK, is_inside_RK = _columns(ids_RK, begin, chunk_RC.shape[1])
            chunk_RC.scatter_add_(1, column_RK, torch.where(is_inside_RK, per_logit_RK, 0.0))
            ids = slice(begin, begin + chunk_RC.shape[1])
            if needs_hidden:
                backend.input_gradient(chunk_RC, weight_VD[ids], grad_hidden_RD, compute=compute)
            if into_VD is not None:
                backend.add_weight_gradient_(into_VD[ids], chunk_RC, hidden_RD, compute=compute)
        return None, None, grad_hidden_RD, grad_weight_VD, None, None, None, None


class Statistics:
    """Running statistics of logits / T over vocabulary chunks. All float32 [R]."""

    def __init__(self, backend: Backend, hidden_RD: Tensor) -> None:
        self._backend = backend
        self._peak = hidden_RD.new_full((len(hidden_RD),), -torch.inf, dtype=torch.float32)
        self._mass, self._moment = torch.zeros_like(self._peak), torch.zeros_like(self._peak)

    def add_chunk(self, logits_RC: Tensor, temperature_R: Tensor) -> None:
        """Add the next columns of the head."""
        self._backend.add_chunk(logits_RC, temperature_R, (self._peak, self._mass, self._moment))

    def log_sum_exp(self) -> Tensor:
        """float32 [R]: log of the sum of exp over the vocabulary."""
        return self._backend.log_sum_exp(self._peak, self._mass)

    def entropy(self, lse_R: Tensor) -> Tensor:
        """float32 [R] in nats: the entropy of each row's distribution, given its ``log_sum_exp``."""
        return lse_R - (self._moment / self._mass + self._peak)

    def squares(self, squared: "Statistics") -> Tensor:
        """float32 [R]: the sum of the squared probabilities, given the statistics at T / 2: their exp is the square."""
        # Halving T is exact, so the peak at T / 2 is exactly twice this one and both cancel.
        return squared._mass / self._mass.square()


def logit_chunks(
    backend: Backend, compute: Compute, hidden_RD: Tensor, head_weight_VD: Tensor, vocab_limit: int
) -> Iterator[tuple[int, Tensor]]:
    """(first id, logits [R, C]) of each chunk, in order; the next chunk overwrites the logits."""
    num_rows, plain = len(hidden_RD), replace(compute, rounds_bf16=False)
    logits = hidden_RD.new_empty(num_rows * min(VOCAB_CHUNK, vocab_limit), dtype=torch.float32)
    for begin in range(0, vocab_limit, VOCAB_CHUNK):
        width = min(VOCAB_CHUNK, vocab_limit - begin)
        chunk_RC = logits[: num_rows * width].view(num_rows, width)
        weight_CD = head_weight_VD[begin : begin + width]
        backend.product(hidden_RD, weight_CD, out_MO=chunk_RC, compute=plain)
        yield begin, chunk_RC


def _columns(ids_RK: Tensor, begin: int, width: int) -> tuple[Tensor, Tensor]:
    """Column of each id in the chunk that begins at ``begin``, clamped to it, and whether the id is inside."""
    column_RK = ids_RK - begin
    is_inside_RK = (column_RK >= 0) & (column_RK < width)
    return column_RK.clamp(0, width - 1), is_inside_RK
