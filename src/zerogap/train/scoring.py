"""Log-probs of whole samples by any model, without gradient: the trainer's forward pass, for measurements."""

from collections.abc import Sequence

import numpy as np

from zerogap.kernels import PLAIN, Compute
from zerogap.models import CausalLM
from zerogap.train.forward import scores
from zerogap.train.packing import pack
from zerogap.train.participants import check_ids
from zerogap.train.tokens import TokenIndex
from zerogap.types import Sample


def score_samples(
    model: CausalLM,
    samples: Sequence[Sample],
    *,
    micro_batch_tokens: int,
    share_prompts: bool = True,
    compute: Compute = PLAIN,
) -> list[np.ndarray]:
    """Log-probs of every token that was sampled, whatever its outcome, at the sample's temperature.

    Args:
        model: no weight or gradient of it changes.
        samples: any.
        micro_batch_tokens: most token rows of one forward pass.
        share_prompts: compute common prefixes of a group once.
        compute: how the passes compute.

    Returns:
        float32 [T] for each sample, NaN where the policy did not sample.

    Raises:
        DataError: an id outside the vocabulary.
    """
    for sample in samples:
        check_ids(sample, model.head.vocab_limit)
    batches = pack(
        samples,
        [sample.weight_version >= 0 for sample in samples],
        max_rows=micro_batch_tokens,
        share_prompts=share_prompts,
    )
    index = TokenIndex(samples)
    return index.split(index.column(scores(model, batches, samples, compute=compute)))
