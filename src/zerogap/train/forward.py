"""Log-probs of a micro-batch's targets: the one forward pass of the trainer.

The same model, kernels and head as the engine's, over packed rows; a target's log-prob has the same bits in any
micro-batch. R targets, U different ones, K candidates for a target's place.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels import PackedLayout, log_probs, log_probs_of, packed_attention
from zerogap.models import CausalLM
from zerogap.train.packing import MicroBatch
from zerogap.types import Sample, SamplingParams


@dataclass(frozen=True)
class PackedAttention:
    """A ``models.Attention`` over rows that are all in this forward pass; keeps nothing between layers."""

    layout: PackedLayout
    scale: float

    def __call__(self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> Tensor:
        """What each row reads, [T, N, H]."""
        return packed_attention(q_TNH, k_TKH, v_TKH, self.layout, scale=self.scale)


@dataclass(frozen=True)
class Questions:
    """What the head is asked: siblings that go on from one row with one token ask the same, and it is answered once."""

    hidden_UD: Tensor
    """float32 [U, D], with gradient where gradients are enabled."""
    target_U: Tensor
    temperature_U: Tensor
    first_U: Tensor
    """int64 [U]: a target that asks it."""
    place_R: Tensor
    """int64 [R]: which of the U answers each target."""


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
    asked = ask(model, micro_batch, samples, recompute=recompute)
    log_prob_U, entropy_U = log_probs(
        asked.hidden_UD,
        model.head_weight,
        asked.target_U,
        asked.temperature_U,
        vocab_limit=vocab_limit,
    )
    return log_prob_U.index_select(0, asked.place_R), entropy_U.index_select(0, asked.place_R)


def score_candidates(
    model: CausalLM,
    micro_batch: MicroBatch,
    samples: Sequence[Sample],
    candidates_RK: Tensor,
    *,
    vocab_limit: int,
    recompute: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(log-prob, entropy) of each target as ``score_micro_batch`` gives them, and log-probs [R, K] of candidates for its place.

    All from one pass, with the same bits as ``score_micro_batch``; log-probs have a gradient where gradients are enabled.

    Args:
        model: the policy.
        micro_batch: rows and targets.
        samples: what was packed.
        candidates_RK: int64 [R, K] ids; the same for targets that the same row predicts.
        vocab_limit: ids at or past it have probability 0.
        recompute: keep only each layer's input for the backward pass.
    """
    asked = ask(model, micro_batch, samples, recompute=recompute)
    ids_UK1 = torch.cat([asked.target_U[:, None], candidates_RK[asked.first_U]], 1)
    found_UK1, entropy_U = log_probs_of(
        asked.hidden_UD, model.head_weight, ids_UK1, asked.temperature_U, vocab_limit=vocab_limit
    )
    found_RK1 = found_UK1.index_select(0, asked.place_R)
    return found_RK1[:, 0], entropy_U.index_select(0, asked.place_R), found_RK1[:, 1:]


def ask(
    model: CausalLM, micro_batch: MicroBatch, samples: Sequence[Sample], *, recompute: bool = False
) -> Questions:
    """The model's pass over the rows of a micro-batch, up to the head."""
    hidden_TD = model(
        micro_batch.token_ids_T,
        micro_batch.positions_T,
        PackedAttention(micro_batch.layout, model.config.attention_scale),
        recompute=recompute and torch.is_grad_enabled(),
    )
    row_R, target_R = micro_batch.source_row_R, micro_batch.target_R
    temperature_R = _temperatures(samples, micro_batch)
    first_U, place_R = _distinct(row_R, target_R, temperature_R)
    return Questions(
        hidden_TD.index_select(0, row_R[first_U]),
        target_R[first_U],
        temperature_R[first_U],
        first_U,
        place_R,
    )


@torch.no_grad()
def scores(
    model: CausalLM, batches: Iterable[MicroBatch], samples: Sequence[Sample], *, vocab_limit: int
) -> Iterator[tuple[MicroBatch, np.ndarray]]:
    """Each micro-batch with the log-probs of its targets, float32 [R], without gradient."""
    for batch in batches:
        log_probs_R, _ = score_micro_batch(model, batch, samples, vocab_limit=vocab_limit)
        yield batch, log_probs_R.numpy()


def _distinct(row_R: Tensor, target_R: Tensor, temperature_R: Tensor) -> tuple[Tensor, Tensor]:
    """See ``Questions``.

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
