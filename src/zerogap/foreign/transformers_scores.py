"""Log-probs of given samples by transformers' own code, one sample at a time, from a model folder."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from zerogap.types import Sample


@torch.no_grad()
def transformers_log_probs(
    folder: Path, samples: Sequence[Sample], *, vocab_limit: int
) -> list[np.ndarray]:
    """Load a Hugging Face folder in fp32 and score samples.

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
