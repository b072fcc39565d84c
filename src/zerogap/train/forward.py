"""Log-probs of a micro-batch's targets: the one forward pass of the trainer.

It uses the engine's model, kernels and head, over packed rows; a target's log-prob has the same bits in any micro-batch.
R targets, U distinct head inputs, K candidates for a target's position.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from zerogap.kernels import (
    PLAIN,
    Compute,
    PackedLayout,
    log_probs,
    log_probs_of,
    log_probs_with_squares,
    packed_attention,
    to_device,
    to_host,
)
from zerogap.models import CausalLM
from zerogap.train.packing import MicroBatch
from zerogap.types import Sample, SamplingParams

Statistic = Literal["log_prob", "entropy", "square_sum"]
"""Of a target: its log-prob; entropy (nats) or sum of squared probabilities of the distribution that it was drawn from."""


@dataclass(frozen=True)
class PackedAttention:
    """A ``models.Attention`` over rows that are all in this forward pass; no KV cache."""

    layout: PackedLayout
    scale: float

    def __call__(self, layer: int, q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor) -> Tensor:
        """The attention output of each row, [T, N, H]."""
        return packed_attention(q_TNH, k_TKH, v_TKH, self.layout, scale=self.scale)


@dataclass(frozen=True)
class HeadInputs:
    """Distinct inputs of the head: siblings that continue one row with the same token share one, which is computed once."""

    hidden_UD: Tensor
    """float32 [U, D], with gradient where gradients are enabled."""
    target_U: Tensor
    temperature_U: Tensor
    first_U: Tensor
    """int64 [U]: one of the targets that have this input."""
    place_R: Tensor
    """int64 [R]: which of the U inputs each target has."""


def score_micro_batch(
    model: CausalLM,
    micro_batch: MicroBatch,
    samples: Sequence[Sample],
    *,
    compute: Compute = PLAIN,
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """(log-prob, entropy) of each target, float32 [R]; both have a gradient where gradients are enabled.

    An entropy that no loss uses costs its backward pass nothing.

    Args:
        model: the policy, or a reference.
        micro_batch: rows and targets.
        samples: those that were packed; their temperatures scale the logits.
        compute: how the pass computes.
        recompute: keep only each layer's input for the backward pass.
    """
    inputs = forward_to_head(model, micro_batch, samples, compute=compute, recompute=recompute)
    log_prob_U, entropy_U = log_probs(
        inputs.hidden_UD, model.head, inputs.target_U, inputs.temperature_U, compute=compute
    )
    return log_prob_U.index_select(0, inputs.place_R), entropy_U.index_select(0, inputs.place_R)


def score_candidates(
    model: CausalLM,
    micro_batch: MicroBatch,
    samples: Sequence[Sample],
    candidates_RK: np.ndarray,
    *,
    compute: Compute = PLAIN,
    recompute: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(log-prob, entropy) of each target, and log-probs [R, K] of candidates for its position.

    One pass gives all of them, with the bits of ``score_micro_batch``; all have a gradient where gradients are enabled.

    Arguments as in ``score_micro_batch``; ``candidates_RK`` are int64 ids, equal for targets that one row predicts in samples
    of equal ``teacher_prompt_ids``.
    """
    members_M, member_R = np.unique(micro_batch.sample_R, return_inverse=True)
    variants: dict[object, int] = {}
    variant_M = [variants.setdefault(samples[i].teacher_prompt_ids, len(variants)) for i in members_M]  # fmt: skip
    inputs = forward_to_head(
        model,
        micro_batch,
        samples,
        compute=compute,
        recompute=recompute,
        variant_R=np.array(variant_M)[member_R],
    )
    candidates = to_device(candidates_RK, inputs.first_U.device).index_select(0, inputs.first_U)
    ids_UK1 = torch.cat([inputs.target_U[:, None], candidates], 1)
    found_UK1, entropy_U = log_probs_of(
        inputs.hidden_UD, model.head, ids_UK1, inputs.temperature_U, compute=compute
    )
    found_RK1 = found_UK1.index_select(0, inputs.place_R)
    return found_RK1[:, 0], entropy_U.index_select(0, inputs.place_R), found_RK1[:, 1:]


def hidden_rows(
    model: CausalLM, micro_batch: MicroBatch, *, compute: Compute = PLAIN, recompute: bool = False
) -> Tensor:
    """The hidden states of a micro-batch's rows, [T, D]; copies its host arrays to the model's device."""
    device = model.device
    return model(
        to_device(micro_batch.token_ids_T, device),
        to_device(micro_batch.positions_T, device),
        PackedAttention(micro_batch.layout.to(device), model.config.attention_scale),
        compute=compute,
        recompute=recompute and torch.is_grad_enabled(),
    )


def forward_to_head(
    model: CausalLM,
    micro_batch: MicroBatch,
    samples: Sequence[Sample],
    *,
    compute: Compute = PLAIN,
    recompute: bool = False,
    variant_R: np.ndarray | None = None,
) -> HeadInputs:
    """The model's pass over a micro-batch's rows, up to the head.

    Targets of different ``variant_R``, numbers from 0, share no input of the head.
    """
    hidden_TD = hidden_rows(model, micro_batch, compute=compute, recompute=recompute)
    row_R, target_R = micro_batch.source_row_R, micro_batch.target_R
    temperature_R = _temperatures(samples, micro_batch)
    first_U, place_R = _distinct(row_R, target_R, temperature_R, variant_R)
    columns = row_R[first_U], target_R[first_U], temperature_R[first_U], first_U, place_R
    row_U, target_U, temperature_U, first, place = (
        to_device(column, hidden_TD.device) for column in columns
    )
    return HeadInputs(hidden_TD.index_select(0, row_U), target_U, temperature_U, first, place)


@torch.no_grad()
def scores(
    model: CausalLM,
    batches: Iterable[MicroBatch],
    samples: Sequence[Sample],
    *,
    compute: Compute = PLAIN,
) -> Iterator[tuple[MicroBatch, np.ndarray]]:
    """Each micro-batch with the log-probs of its targets, float32 [R], without gradient."""
    for batch in batches:
        log_prob_R, _ = score_micro_batch(model, batch, samples, compute=compute)
        yield batch, to_host(log_prob_R)


@torch.no_grad()
def statistics(
    model: CausalLM,
    batches: Iterable[MicroBatch],
    samples: Sequence[Sample],
    *,
    compute: Compute = PLAIN,
) -> Iterator[tuple[MicroBatch, dict[Statistic, np.ndarray]]]:
    """``scores`` with the same bits, and all other statistics of each target from the same pass: float32 [R] each."""
    for batch in batches:
        inputs = forward_to_head(model, batch, samples, compute=compute)
        found = log_probs_with_squares(
            inputs.hidden_UD, model.head, inputs.target_U, inputs.temperature_U, compute=compute
        )
        names = get_args(Statistic)
        yield (
            batch,
            {
                name: to_host(found_U.index_select(0, inputs.place_R))
                for name, found_U in zip(names, found, strict=True)
            },
        )


def _distinct(
    row_R: np.ndarray,
    target_R: np.ndarray,
    temperature_R: np.ndarray,
    variant_R: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """``first_U`` and ``place_R`` of ``HeadInputs``."""
    _, temperature_id_R = np.unique(temperature_R, return_inverse=True)
    width, height = int(target_R.max()) + 1, int(temperature_id_R.max()) + 1
    key_R = (row_R * width + target_R) * height + temperature_id_R
    if variant_R is not None:
        key_R = key_R * (int(variant_R.max()) + 1) + variant_R
    _, first_U, place_R = np.unique(key_R, return_index=True, return_inverse=True)
    return first_U, place_R


def _temperatures(samples: Sequence[Sample], micro_batch: MicroBatch) -> np.ndarray:
    """float32 [R]: the temperature at which each target's log-prob was reported (1 if sampling was greedy)."""
    by_sample = [SamplingParams(temperature=s.temperature).score_temperature for s in samples]
    return np.array(by_sample, np.float32)[micro_batch.sample_R]
