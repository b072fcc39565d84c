"""The k likeliest ids of the language-model head, without a [R, V] tensor.

R rows, D model dim, C columns of a chunk, k or K ids per row.
"""

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels.backend import PLAIN, Compute
from zerogap.kernels.choice import backend_of
from zerogap.kernels.head import Head, Statistics, logit_chunks


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
    stats = Statistics(backend, hidden_RD)
    logit_RK = hidden_RD.new_empty(len(hidden_RD), 0, dtype=torch.float32)
    ids_RK = hidden_RD.new_empty(len(hidden_RD), 0, dtype=torch.int64)
    for begin, chunk_RC in logit_chunks(backend, compute, hidden_RD, head.weight_VD, vocab_limit):
        stats.add_chunk(chunk_RC, temperature_R)
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
