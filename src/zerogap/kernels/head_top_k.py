"""The language-model head for several ids per row: their log-probs with gradient, and the k likeliest ids.

For objectives that use more of a distribution than the drawn token (distillation). Chunks, statistics and log-sum-exp
are those of ``head.log_probs``: both give an id's log-prob the same bits. No [R, V] tensor is ever allocated.

R rows, D model dim, V vocabulary, C columns of a chunk, K ids per row.
"""

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels.backend import PLAIN, Compute
from zerogap.kernels.choice import backend_of
from zerogap.kernels.gradients import first_order
from zerogap.kernels.head import (
    Head,
    HeadGradient,
    Statistics,
    logit_chunks,
)


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
        distribution, float32 [R], detached.
    """
    backend = backend_of(hidden_RD, head.weight_VD, ids_RK, temperature_R)
    return _LogProbsOf.apply(
        backend, compute, hidden_RD, head.weight_VD, ids_RK, temperature_R, head.vocab_limit
    )


class _LogProbsOf(torch.autograd.Function):
    """Forward keeps the log-sum-exp of each row; backward recomputes each chunk of logits."""

    @staticmethod
    def forward(ctx, backend, compute, hidden_RD, weight_VD, ids_RK, temperature_R, vocab_limit):  # noqa: ANN001, ANN205
        stats, nowhere_R = Statistics(backend, hidden_RD), _nowhere(hidden_RD)
        scaled_RK = hidden_RD.new_full(ids_RK.shape, torch.nan, dtype=torch.float32)
        for begin, end, chunk_RC in logit_chunks(
            backend, compute, hidden_RD, weight_VD, vocab_limit
        ):
            stats.add_chunk(chunk_RC, temperature_R, nowhere_R, begin)
            local_RK, is_inside_RK = _places(ids_RK, begin, end)
            found_RK = chunk_RC.gather(1, local_RK) / temperature_R[:, None]
            scaled_RK = torch.where(is_inside_RK, found_RK, scaled_RK)
        lse_R = stats.log_sum_exp()
        ctx.save_for_backward(hidden_RD, weight_VD, ids_RK, temperature_R, lse_R)
        ctx.backend, ctx.compute, ctx.vocab_limit = backend, compute, vocab_limit
        entropy_R = stats.entropy(lse_R)
        ctx.mark_non_differentiable(entropy_R)
        return scaled_RK - lse_R[:, None], entropy_R

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        grad_RK, _entropy_has_none = grads
        hidden_RD, _, ids_RK, temperature_R, lse_R = ctx.saved_tensors
        # The gradient of every id's log-prob has the same -softmax term; the id's own column adds its gradient.
        total_R, nowhere_R = grad_RK.double().sum(1).float(), _nowhere(hidden_RD)
        per_logit_RK = grad_RK / temperature_R[:, None]
        gradient = HeadGradient(ctx)
        for begin, chunk_RC in gradient.chunks():
            ctx.backend.logits_gradient_(chunk_RC, temperature_R, lse_R, nowhere_R, total_R)
            local_RK, is_inside_RK = _places(ids_RK, begin, begin + chunk_RC.shape[1])
            chunk_RC.scatter_add_(1, local_RK, torch.where(is_inside_RK, per_logit_RK, 0.0))
            gradient.add(begin, chunk_RC)
        return None, None, gradient.of_hidden, gradient.of_weight, None, None, None


@torch.no_grad()
def top_k_log_probs(
    hidden_RD: Tensor,
    head: Head,
    k: int,
    temperature_R: Tensor,
    *,
    compute: Compute = PLAIN,
) -> tuple[Tensor, Tensor]:
    """The k likeliest ids of each row, int64 [R, k], and their log-probs, float32 [R, k]; without gradient.

    Likeliest first, ties by ascending id, also at the last place. Arguments as in ``log_probs_of``; the log-probs have
    the same bits as there.

    Raises:
        KernelError: k is below 1 or above the head's ``vocab_limit``.
    """
    vocab_limit = head.vocab_limit
    if not 1 <= k <= vocab_limit:
        msg = f"k = {k} is outside [1, {vocab_limit}], the size of the vocabulary; use a k in that range"
        raise KernelError(msg)
    backend = backend_of(hidden_RD, head.weight_VD, temperature_R)
    stats, nowhere_R = Statistics(backend, hidden_RD), _nowhere(hidden_RD)
    logit_RK = hidden_RD.new_empty(len(hidden_RD), 0, dtype=torch.float32)
    ids_RK = nowhere_R.new_empty(len(hidden_RD), 0)
    for begin, _, chunk_RC in logit_chunks(
        backend, compute, hidden_RD, head.weight_VD, vocab_limit
    ):
        stats.add_chunk(chunk_RC, temperature_R, nowhere_R, begin)
        column_RK = _largest(chunk_RC, k)
        ids_RK = torch.cat([ids_RK, column_RK + begin], 1)
        logit_RK = torch.cat([logit_RK, chunk_RC.gather(1, column_RK)], 1)
        best_RK = _largest(logit_RK, k)
        ids_RK, logit_RK = ids_RK.gather(1, best_RK), logit_RK.gather(1, best_RK)
    log_probs_RK = logit_RK / temperature_R[:, None] - stats.log_sum_exp()[:, None]
    order_RK = log_probs_RK.argsort(dim=1, descending=True, stable=True)
    return ids_RK.gather(1, order_RK), log_probs_RK.gather(1, order_RK)


def _largest(values_RC: Tensor, k: int) -> Tensor:
    """Columns of the k largest values of each row, ascending; ties go to the first. All columns if k or fewer."""
    columns_C = torch.arange(values_RC.shape[1], device=values_RC.device)
    if values_RC.shape[1] <= k:
        return columns_C.expand(values_RC.shape)
    # torch.topk does not say which of several equal values it takes, so the keys are all different: the value's bits
    # as an ordered integer in the upper half, the negated column below.
    bits_RC = values_RC.view(torch.int32).long()
    ordered_RC = torch.where(bits_RC < 0, -(bits_RC & 0x7FFFFFFF), bits_RC)
    keys_RC = (ordered_RC << 32) - columns_C
    return keys_RC.topk(k, 1).indices.sort(1).values


def _places(ids_RK: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Column of each id in the chunk ``[begin, end)``, clamped to the chunk, and whether the id is inside."""
    local_RK = ids_RK - begin
    is_inside_RK = (local_RK >= 0) & (local_RK < end - begin)
    return local_RK.clamp(0, end - begin - 1), is_inside_RK


def _nowhere(hidden_RD: Tensor) -> Tensor:
    """int64 [R]: the target of a row without a target; it is outside every chunk."""
    return hidden_RD.new_full((len(hidden_RD),), -1, dtype=torch.int64)
