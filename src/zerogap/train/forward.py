"""Log-probs of a micro-batch's targets: the one forward pass of the trainer.

The same model, kernels and head as the engine's, over packed rows; a target's log-prob has the same bits in any
micro-batch. R targets, U different ones.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels import log_probs
from zerogap.models import CausalLM
from zerogap.train.attention import PackedAttention
from zerogap.train.packing import MicroBatch
from zerogap.types import Sample, SamplingParams


def score_micro_batch(
    model: CausalLM,
    micro_batch: MicroBatch,
    samples: Sequence[Sample],
    *,
    vocab_limit: int,
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """(log-prob, entropy) of each target, float32 [R]; log-probs have a gradient where gradients are enabled.

    Args:
        model: the policy or a frozen reference.
        micro_batch: rows and targets.
        samples: what was packed; gives each target its temperature.
        vocab_limit: ids at or past it have probability 0.
        recompute: keep only each layer's input for the backward pass.
    """
    hidden_TD = model(
        micro_batch.token_ids_T,
        micro_batch.positions_T,
        PackedAttention(micro_batch.layout, model.config.attention_scale),
        recompute=recompute and torch.is_grad_enabled(),
    )
    row_R, target_R = micro_batch.source_row_R, micro_batch.target_R
    temperature_R = _temperatures(samples, micro_batch)
    first_U, place_R = _distinct(row_R, target_R, temperature_R)
    log_prob_U, entropy_U = log_probs(
        hidden_TD.index_select(0, row_R[first_U]),
        model.head_weight,
        target_R[first_U],
        temperature_R[first_U],
        vocab_limit=vocab_limit,
    )
    return log_prob_U.index_select(0, place_R), entropy_U.index_select(0, place_R)


@torch.no_grad()
def scores(
    model: CausalLM, batches: Iterable[MicroBatch], samples: Sequence[Sample], *, vocab_limit: int
) -> Iterator[tuple[MicroBatch, np.ndarray]]:
    """Each micro-batch with the log-probs of its targets, float32 [R], without gradient."""
    for batch in batches:
        log_probs_R, _ = score_micro_batch(model, batch, samples, vocab_limit=vocab_limit)
        yield batch, log_probs_R.numpy()


def _distinct(row_R: Tensor, target_R: Tensor, temperature_R: Tensor) -> tuple[Tensor, Tensor]:
    """Siblings that go on from one row with one token ask the same question: it is answered once.

    Returns:
        int64 [U]: one target of each kind, in order; int64 [R]: which of those answers each target.
    """
    _, temperature_id_R = torch.unique(temperature_R, return_inverse=True)
    width, height = int(target_R.max()) + 1, int(temperature_id_R.max()) + 1
    question_R = (row_R * width + target_R) * height + temperature_id_R
    _, first_U, place_R = np.unique(question_R.numpy(), return_index=True, return_inverse=True)
    return torch.from_numpy(first_U), torch.from_numpy(place_R)


def _temperatures(samples: Sequence[Sample], micro_batch: MicroBatch) -> Tensor:
    """float32 [R]: the temperature at which each target's log-prob was reported (1 where it was greedy)."""
    by_sample = [SamplingParams(temperature=s.temperature).score_temperature for s in samples]
    return torch.tensor(by_sample, dtype=torch.float32)[torch.from_numpy(micro_batch.sample_R)]
