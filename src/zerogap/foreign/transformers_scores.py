"""Log-probs by transformers' own code: of given samples, and of the ids that its ``generate`` drew.

G siblings, C tokens of the longest completion, V vocabulary.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zerogap.types import Sample, SamplingParams


@torch.no_grad()
def transformers_log_probs(
    folder: Path, samples: Sequence[Sample], *, vocab_limit: int
) -> list[np.ndarray]:
    """Load a Hugging Face folder in fp32 and score samples, each alone.

    Args:
        folder: written by an export.
        samples: scored at their own temperatures.
        vocab_limit: ids from here on carry no mass.

    Returns:
        float32 [T] for each sample, NaN where the policy did not sample.
    """
    # Imported here: it takes seconds, and only this comparison needs it.
    from transformers import AutoModelForCausalLM

    with _without_progress_bar():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        ).eval()
    columns = []
    for sample in samples:
        ids_T = torch.from_numpy(sample.token_ids.astype(np.int64))
        logits_TV = model(ids_T[None]).logits[0, :-1, :vocab_limit]
        log_probs_TV = (logits_TV / sample.temperature).log_softmax(-1)
        column_T = torch.full((len(sample),), torch.nan)
        column_T[1:] = log_probs_TV.gather(1, ids_T[1:, None])[:, 0]
        columns.append(np.where(sample.weight_version >= 0, column_T.numpy(), np.float32(np.nan)))
    return columns


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


@contextmanager
def _without_progress_bar() -> Generator[None, None, None]:
    """Keep transformers from drawing a progress bar over the caller's output."""
    from transformers.utils import logging

    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
