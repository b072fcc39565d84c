"""A frozen teacher for on-policy distillation: its log-probs of the tokens that the policy drew, and its likeliest ids.

Its log-probs come from the trainer's own forward pass and head, at the temperature of the sample, over the ids of the
tokenizer that both share. R targets of a micro-batch, K ids a target.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from zerogap.errors import ConfigError
from zerogap.kernels import PLAIN, Compute, to_host, top_k_log_probs
from zerogap.models import CausalLM
from zerogap.train.forward import forward_to_head
from zerogap.train.packing import MicroBatch
from zerogap.types import Sample


@dataclass(frozen=True)
class TopK:
    """The teacher's likeliest ids at the position of each target, likeliest first."""

    ids_RK: np.ndarray
    """int64 [R, K]"""
    log_probs_RK: np.ndarray
    """float32 [R, K], nats, over the whole vocabulary."""


class Teacher:
    """A model that nobody trains. Its token ids must mean the same as the policy's: see ``Tokenizer.check_same_ids``."""

    def __init__(self, model: CausalLM, *, vocab_limit: int) -> None:
        """A teacher with the policy's vocabulary.

        Args:
            model: its weights loaded; they are not changed. Its vocabulary is limited to the policy's ids.
            vocab_limit: the policy's.

        Raises:
            ConfigError: the teacher has no row for some of these ids.
        """
        if model.config.vocab_size < vocab_limit:
            msg = f"teacher.path has a vocabulary of {model.config.vocab_size} ids and the policy's tokenizer has {vocab_limit}: it cannot score the rest; choose a teacher with the policy's tokenizer"
            raise ConfigError(msg)
        model.limit_vocabulary(vocab_limit)
        self.model = model

    @torch.no_grad()
    def top_k(
        self,
        micro_batch: MicroBatch,
        samples: Sequence[Sample],
        k: int,
        *,
        compute: Compute = PLAIN,
    ) -> TopK:
        """The teacher's ``k`` likeliest ids at each target's position, whatever was drawn there.

        All ids if the vocabulary has fewer than ``k``.
        """
        inputs, head = (
            forward_to_head(self.model, micro_batch, samples, compute=compute),
            self.model.head,
        )
        k = min(k, head.vocab_limit)
        found = top_k_log_probs(inputs.hidden_UD, head, k, inputs.temperature_U, compute=compute)
        return TopK(*(to_host(column_UK.index_select(0, inputs.place_R)) for column_UK in found))
