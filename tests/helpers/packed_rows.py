"""Sequences packed into one row dimension, as the trainer packs them, for tests of the model alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from zerogap.kernels import PackedLayout, build_packed_layout, linear, packed_attention
from zerogap.models import CausalLM
from zerogap.types import Sample


@dataclass
class PackedRows:
    """Rows of several sequences, one after the other; positions restart with each."""

    sequences: Sequence[Sequence[int]]
    token_ids_T: torch.Tensor = field(init=False)
    positions_T: torch.Tensor = field(init=False)
    layout: PackedLayout = field(init=False)

    def __post_init__(self) -> None:
        ends = np.cumsum([len(ids) for ids in self.sequences])
        rows = [
            np.arange(end - len(ids), end) for end, ids in zip(ends, self.sequences, strict=True)
        ]
        self.token_ids_T = torch.tensor([i for ids in self.sequences for i in ids])
        self.positions_T = torch.cat([torch.arange(len(ids)) for ids in self.sequences])
        self.layout = build_packed_layout(rows, [0] * len(rows), int(ends[-1]))

    def attention(self, scale: float) -> Callable[..., torch.Tensor]:
        """The ``Attention`` of these rows."""

        def attend(layer: int, q_TNH, k_TKH, v_TKH):
            return packed_attention(q_TNH, k_TKH, v_TKH, self.layout, scale=scale)

        return attend

    def leak(self, row: int) -> None:
        """Plant a fault: ``row`` also sees the next position of its sequence."""
        positions = self.layout.plan.row_position_T.clone()
        positions[row] += 1
        self.layout = replace(self.layout, plan=replace(self.layout.plan, row_position_T=positions))

    def logits(self, model: CausalLM, **options) -> torch.Tensor:
        """[T, V], differentiable."""
        attention = self.attention(model.config.attention_scale)
        hidden_TD = model(self.token_ids_T, self.positions_T, attention, **options)
        return linear(hidden_TD, model.head_weight)


def log_softmax_alone(model: CausalLM, sample: Sample) -> torch.Tensor:
    """float64 [L, V] at the place of each trainable token, from the sample alone and a full log_softmax."""
    logits_TV = PackedRows([sample.token_ids.tolist()]).logits(model)
    log_probs_TV = (logits_TV[:-1].double() / sample.temperature).log_softmax(-1)
    return log_probs_TV[torch.tensor(sample.loss_mask[1:])]


def log_probs_alone(model: CausalLM, sample: Sample) -> torch.Tensor:
    """float64 [L] of the trainable tokens."""
    targets = torch.from_numpy(sample.token_ids[sample.loss_mask].astype(np.int64))
    return log_softmax_alone(model, sample).gather(1, targets[:, None])[:, 0]
