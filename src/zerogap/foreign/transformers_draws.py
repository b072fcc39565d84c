"""Draws of transformers' ``generate``: a limit on its vocabulary, and the log-probs of the drawn ids.

G siblings, C tokens of the longest completion, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerogap.types import SamplingParams


class VocabLimit:
    """Bans ids past the tokenizer's."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def __call__(self, input_ids: Tensor, scores_GV: Tensor) -> Tensor:
        """A copy of the scores without the banned ids; transformers calls this before each draw."""
        scores_GV = scores_GV.clone()
        scores_GV[:, self._limit :] = -torch.inf
        return scores_GV


def log_probs_of_draws(
    made: Any,  # noqa: ANN401 - transformers' own type
    drawn_GC: Tensor,
    params: SamplingParams,
    vocab_limit: int,
) -> tuple[np.ndarray, np.ndarray]:
    """float32 [G, C] for the drawn ids: log-prob over the vocabulary, and log mass of the ids that could be drawn."""
    columns = []
    for step, (logits_GV, scores_GV) in enumerate(zip(made.logits, made.scores, strict=True)):
        scaled_GV = logits_GV[:, :vocab_limit].float() / params.score_temperature
        log_prob_GV = torch.log_softmax(scaled_GV, dim=-1)
        # Padding after an end may lie outside the vocabulary; the caller cuts its value off.
        drawn_G1 = drawn_GC[:, step, None].clamp(max=vocab_limit - 1)
        is_kept_GV = scores_GV[:, :vocab_limit] > -torch.inf
        kept_G = torch.where(is_kept_GV, log_prob_GV, -torch.inf).logsumexp(-1).clamp(max=0.0)
        kept_G = torch.where(is_kept_GV.all(-1), 0.0, kept_G)
        columns.append((log_prob_GV.gather(1, drawn_G1)[:, 0], kept_G))
    log_prob, kept = (torch.stack(column, dim=1).numpy() for column in zip(*columns, strict=True))
    return log_prob, kept
