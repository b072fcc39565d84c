"""The language-model head: log-probs of given tokens in vocabulary chunks, without a [R, V] tensor.

``log_probs`` is this project's only definition of a token's log-prob: the engine's sampler uses the same chunks and the
same statistics, so both sides agree to the bit.
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


def vocab_chunks(vocab_limit: int) -> Iterator[tuple[int, int]]:
    """Half-open column ranges of the head, in order, up to ``vocab_limit``."""
    for begin in range(0, vocab_limit, VOCAB_CHUNK):
        yield begin, min(begin + VOCAB_CHUNK, vocab_limit)


def logit_chunks(
    backend: Backend, compute: Compute, hidden_RD: Tensor, head_weight_VD: Tensor, vocab_limit: int
) -> Iterator[tuple[int, int, Tensor]]:
    """(begin, end, logits [R, end - begin]) of each chunk, in order; the next chunk overwrites the logits."""
    num_rows, plain = len(hidden_RD), replace(compute, rounds_bf16=False)
    logits = hidden_RD.new_empty(num_rows * min(VOCAB_CHUNK, vocab_limit), dtype=torch.float32)
    for begin, end in vocab_chunks(vocab_limit):
        chunk_RC = logits[: num_rows * (end - begin)].view(num_rows, end - begin)
        backend.product(hidden_RD, head_weight_VD[begin:end], out_MO=chunk_RC, compute=plain)
        yield begin, end, chunk_RC


class Statistics:
    """Running statistics of logits / T over vocabulary chunks, in chunk order. All float32 [R]."""

    def __init__(self, backend: Backend, hidden_RD: Tensor) -> None:
        self._backend = backend
        self.peak = hidden_RD.new_full((len(hidden_RD),), -torch.inf, dtype=torch.float32)
        self.mass, self.moment = torch.zeros_like(self.peak), torch.zeros_like(self.peak)
        self.target_logit = torch.full_like(self.peak, torch.nan)
        """NaN until the chunk of the target is added."""

    def add_chunk(
        self, logits_RC: Tensor, temperature_R: Tensor, target_R: Tensor, begin: int
    ) -> None:
        """Add columns ``[begin, begin + C)`` of the head; call in ascending order."""
        stats = (self.peak, self.mass, self.moment, self.target_logit)
        self._backend.add_chunk(logits_RC, temperature_R, target_R - begin, stats)

    def log_sum_exp(self) -> Tensor:
        """float32 [R]: log of the sum of exp over the vocabulary."""
        return self._backend.log_sum_exp(self.peak, self.mass)

    def entropy(self, lse_R: Tensor) -> Tensor:
        """float32 [R] in nats: the entropy of each row's distribution, given its ``log_sum_exp``."""
        return lse_R - (self.moment / self.mass + self.peak)


class _LogProbs(torch.autograd.Function):
    """Forward keeps the log-sum-exp of each row; backward recomputes each chunk of logits."""

    @staticmethod
    def forward(ctx, backend, compute, hidden_RD, weight_VD, target_R, temperature_R, vocab_limit):  # noqa: ANN001, ANN205
        stats = Statistics(backend, hidden_RD)
        for begin, _, chunk_RC in logit_chunks(backend, compute, hidden_RD, weight_VD, vocab_limit):
            stats.add_chunk(chunk_RC, temperature_R, target_R, begin)
        lse = stats.log_sum_exp()
        entropy = stats.entropy(lse)
        ctx.save_for_backward(hidden_RD, weight_VD, target_R, temperature_R, lse)
        ctx.backend, ctx.compute, ctx.vocab_limit = backend, compute, vocab_limit
        ctx.mark_non_differentiable(entropy)
        return stats.target_logit - lse, entropy

    @staticmethod
    @first_order
    def backward(ctx, *grads):  # noqa: ANN001, ANN002, ANN205
        grad_R, _entropy_has_none = grads
        _, _, target_R, temperature_R, lse_R = ctx.saved_tensors
        gradient = HeadGradient(ctx)
        for begin, chunk_RC in gradient.chunks():
            ctx.backend.logits_gradient_(chunk_RC, temperature_R, lse_R, target_R - begin, grad_R)
            gradient.add(begin, chunk_RC)
        return None, None, gradient.of_hidden, gradient.of_weight, None, None, None


class HeadGradient:
    """Gradients of hidden states and head, summed over recomputed chunks of logits.

    Takes the context of a Function whose arguments begin with backend, compute, hidden states and head, and whose saved
    tensors begin with hidden states and head.
    """

    def __init__(self, ctx) -> None:  # noqa: ANN001
        self._hidden_RD, self._weight_VD = ctx.saved_tensors[:2]
        self._backend, self._compute, self._vocab_limit = ctx.backend, ctx.compute, ctx.vocab_limit
        needs_hidden, needs_weight = ctx.needs_input_grad[2:4]
        self.of_hidden = torch.zeros_like(self._hidden_RD) if needs_hidden else None
        self._into_VD, self.of_weight = (
            gradient_target(self._weight_VD, ctx.compute) if needs_weight else (None, None)
        )

    def chunks(self) -> Iterator[tuple[int, Tensor]]:
        """(begin, logits) of each chunk; the caller turns the logits into their gradient in place and calls ``add``."""
        for begin, _, chunk_RC in logit_chunks(
            self._backend, self._compute, self._hidden_RD, self._weight_VD, self._vocab_limit
        ):
            yield begin, chunk_RC

    def add(self, begin: int, grad_RC: Tensor) -> None:
        """Add the contribution of a chunk's gradient to both gradients."""
        columns = slice(begin, begin + grad_RC.shape[1])
        backend, compute = self._backend, self._compute
        if self.of_hidden is not None:
            backend.input_gradient(
                grad_RC, self._weight_VD[columns], self.of_hidden, compute=compute
            )
        if self._into_VD is not None:
            backend.add_weight_gradient_(
                self._into_VD[columns], grad_RC, self._hidden_RD, compute=compute
            )


def log_probs(
    hidden_RD: Tensor,
    head: Head,
    target_R: Tensor,
    temperature_R: Tensor,
    *,
    compute: Compute = PLAIN,
) -> tuple[Tensor, Tensor]:
    """``log_softmax(hidden @ head.T / T)[target]`` over the head's ids, and the entropy.

    Args:
        hidden_RD: float32 [R, D] rows after the final norm; differentiable.
        head: its weight is differentiable.
        target_R: int64 [R] ids of the head.
        temperature_R: float32 [R], positive.
        compute: how to compute; logits are never rounded.

    Returns:
        log-probs float32 [R] in nats, NaN for a target outside the head's ids, and the entropy of each row's
        distribution, float32 [R], detached.
    """
    backend = backend_of(hidden_RD, head.weight_VD, target_R, temperature_R)
    return _LogProbs.apply(
        backend, compute, hidden_RD, head.weight_VD, target_R, temperature_R, head.vocab_limit
    )
