"""The language-model head: log-probs of given tokens in vocabulary chunks, without a [R, V] tensor.

``log_probs`` is the only definition of a token's log-prob in this project: the engine's sampler uses
the same chunking and the same statistics, so both sides agree to the bit.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from zerogap.errors import KernelError
from zerogap.kernels import reference
from zerogap.kernels.constants import VOCAB_CHUNK
from zerogap.kernels.gradients import (
    add_weight_gradient_,
    first_order,
    gradient_target,
    input_gradient,
)
from zerogap.kernels.linear import row_gemm
from zerogap.kernels.native import native


def vocab_chunks(vocab_limit: int) -> Iterator[tuple[int, int]]:
    """Half-open column ranges of the head, in order; nothing at or past ``vocab_limit``."""
    for begin in range(0, vocab_limit, VOCAB_CHUNK):
        yield begin, min(begin + VOCAB_CHUNK, vocab_limit)


def logit_chunks(
    hidden_RD: Tensor, head_weight_VD: Tensor, vocab_limit: int
) -> Iterator[tuple[int, int, Tensor]]:
    """(begin, end, logits [R, end - begin]) of each chunk, in order; a chunk is overwritten by the next."""
    num_rows = len(hidden_RD)
    logits = hidden_RD.new_empty(num_rows * min(VOCAB_CHUNK, vocab_limit))
    for begin, end in vocab_chunks(vocab_limit):
        chunk_RC = logits[: num_rows * (end - begin)].view(num_rows, end - begin)
        row_gemm(hidden_RD, head_weight_VD[begin:end], chunk_RC)
        yield begin, end, chunk_RC


def check_vocab_limit(head_weight_VD: Tensor, vocab_limit: int) -> None:
    """Raise KernelError unless ``vocab_limit`` is between 1 and the rows of the head."""
    if not 1 <= vocab_limit <= len(head_weight_VD):
        msg = f"vocab_limit {vocab_limit} with a head of {len(head_weight_VD)} rows; it must be between 1 and that"
        raise KernelError(msg)


def check_targets(target_ids: Tensor, vocab_limit: int) -> None:
    """Raise ValueError unless all ids are in ``[0, vocab_limit)``."""
    if not target_ids.numel():
        return
    smallest, largest = int(target_ids.min()), int(target_ids.max())
    if smallest < 0 or largest >= vocab_limit:
        msg = f"target ids {smallest}..{largest} leave the vocabulary of {vocab_limit}; score ids of the model's tokenizer"
        raise ValueError(msg)


class _LogProbs(torch.autograd.Function):
    """Forward keeps the log-sum-exp of each row; backward computes each chunk of logits once more."""

    @staticmethod
    def forward(ctx, hidden_RD, head_weight_VD, target_R, temperature_R, vocab_limit):  # noqa: ANN001, ANN205
        stats = Statistics.empty(len(hidden_RD))
        for begin, _, chunk_RC in logit_chunks(hidden_RD, head_weight_VD, vocab_limit):
            stats.add_chunk(chunk_RC, temperature_R, target_R, begin)
        lse = stats.log_sum_exp()
        entropy = stats.entropy(lse)
        ctx.save_for_backward(hidden_RD, head_weight_VD, target_R, temperature_R, lse)
        ctx.vocab_limit = vocab_limit
        ctx.mark_non_differentiable(entropy)
        return stats.target_logit - lse, entropy

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        grad_R, _entropy_has_none = grads
        hidden_RD, weight_VD, target_R, temperature_R, lse_R = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden_RD) if needs_hidden else None
        into_VD, grad_weight = gradient_target(weight_VD) if needs_weight else (None, None)
        for begin, end, chunk_RC in logit_chunks(hidden_RD, weight_VD, ctx.vocab_limit):
            logits_gradient_(chunk_RC, temperature_R, lse_R, target_R - begin, grad_R)
            if grad_hidden is not None:
                input_gradient(chunk_RC, weight_VD[begin:end], grad_hidden)
            if into_VD is not None:
                add_weight_gradient_(into_VD[begin:end], chunk_RC, hidden_RD)
        return grad_hidden, grad_weight, None, None, None


def logits_gradient_(
    logits_RC: Tensor, temperature_R: Tensor, lse_R: Tensor, local_target_R: Tensor, grad_R: Tensor
) -> None:
    """Turn a chunk of logits into d(sum grad * log_prob)/d(logits), in place. A target outside the chunk adds nothing to it."""
    if native.handles(logits_RC):
        native.logits_gradient_(logits_RC, temperature_R, lse_R, local_target_R, grad_R)
        return
    per_logit_R = grad_R / temperature_R
    logits_RC.div_(temperature_R[:, None]).sub_(lse_R[:, None]).exp_().mul_(-per_logit_R[:, None])
    inside = (local_target_R >= 0) & (local_target_R < logits_RC.shape[1])
    rows = inside.nonzero().squeeze(1)
    logits_RC[rows, local_target_R[rows]] += per_logit_R[rows]


class Statistics:
    """Running statistics of logits / T over vocabulary chunks, in chunk order. All float32 [R]."""

    def __init__(self, peak: Tensor, mass: Tensor, moment: Tensor, target_logit: Tensor) -> None:
        self.peak, self.mass, self.moment, self.target_logit = peak, mass, moment, target_logit

    @classmethod
    def empty(cls, num_rows: int) -> "Statistics":
        """Before the first chunk."""
        zeros = torch.zeros(num_rows)
        return cls(torch.full((num_rows,), -torch.inf), zeros, zeros.clone(), zeros.clone())

    def add_chunk(
        self, logits_RC: Tensor, temperature_R: Tensor, target_R: Tensor, begin: int
    ) -> None:
        """Columns ``[begin, begin + C)`` of the head; to be called in ascending order."""
        if native.handles(logits_RC):
            native.add_chunk(
                logits_RC,
                temperature_R,
                target_R - begin,
                (self.peak, self.mass, self.moment, self.target_logit),
            )
            return
        scaled = logits_RC / temperature_R[:, None]
        chunk = reference.chunk_statistics(scaled)
        self.peak, self.mass, self.moment = reference.merge_statistics(
            (self.peak, self.mass, self.moment), chunk
        )
        local = target_R - begin
        inside = (local >= 0) & (local < logits_RC.shape[1])
        rows = inside.nonzero().squeeze(1)
        self.target_logit[rows] = scaled[rows, local[rows]]

    def log_sum_exp(self) -> Tensor:
        """float32 [R]: log of the sum of exp over the vocabulary."""
        if native.handles(self.peak):
            return native.log_sum_exp(self.peak, self.mass)
        # In float64: torch's vectorised float32 log differs from its scalar tail, so that a row's bits
        # would depend on its place.
        return self.peak + self.mass.double().log().float()

    def entropy(self, lse_R: Tensor) -> Tensor:
        """float32 [R], nats, of a row's distribution, given its ``log_sum_exp``."""
        return lse_R - (self.moment / self.mass + self.peak)


def log_probs(
    hidden_RD: Tensor,
    head_weight_VD: Tensor,
    target_R: Tensor,
    temperature_R: Tensor,
    *,
    vocab_limit: int,
) -> tuple[Tensor, Tensor]:
    """``log_softmax(hidden @ head.T / T)[target]`` over ids ``[0, vocab_limit)``, and the entropy.

    Args:
        hidden_RD: float32 [R, D] rows after the final norm; differentiable.
        head_weight_VD: float32 [V, D]; differentiable.
        target_R: int64 [R] ids in [0, vocab_limit).
        temperature_R: float32 [R], positive.
        vocab_limit: columns at or past it do not exist (a padded vocabulary).

    Returns:
        log-probs float32 [R] in nats, and the entropy of each row's distribution, float32 [R], detached.

    Raises:
        ValueError: a target outside the vocabulary.
    """
    check_vocab_limit(head_weight_VD, vocab_limit)
    check_targets(target_R, vocab_limit)
    return _LogProbs.apply(hidden_RD, head_weight_VD, target_R, temperature_R, vocab_limit)
