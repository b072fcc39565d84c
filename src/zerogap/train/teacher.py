"""A teacher for on-policy distillation: its log-probs of the tokens that the policy drew, and its likeliest ids.

Its log-probs come from the trainer's own forward pass and head, at the temperature of the sample, over the ids of the
tokenizer that both share. R targets of a micro-batch, K ids a target.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from zerogap.errors import ConfigError
from zerogap.kernels import PLAIN, Compute, to_host, top_k_log_probs
from zerogap.models import CausalLM
from zerogap.train.forward import forward_to_head
from zerogap.train.packing import MicroBatch, pack
from zerogap.types import Sample


@dataclass(frozen=True)
class TopK:
    """The teacher's likeliest ids at the position of each target, likeliest first."""

    ids_RK: np.ndarray
    """int64 [R, K]"""
    log_probs_RK: np.ndarray
    """float32 [R, K], nats, over the whole vocabulary."""


def as_the_teacher_reads(sample: Sample) -> Sample:
    """The sample behind the prompt that its teacher reads; the same sample if that is the policy's."""
    if sample.teacher_prompt_ids is None:
        return sample
    return sample.with_prompt(sample.teacher_prompt_ids)


def num_tokens_more(sample: Sample) -> int:
    """How many tokens later each completion token stands for the teacher."""
    hinted = sample.teacher_prompt_ids
    return 0 if hinted is None else len(hinted) - sample.num_prompt_tokens


class Teacher:
    """A model that the loss has no gradient to: one of its own, or the policy with a hint. Its token ids must mean the same as the policy's: see ``Tokenizer.check_same_ids``."""

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

    def top_k(
        self,
        micro_batch: MicroBatch,
        samples: Sequence[Sample],
        k: int,
        *,
        max_rows: int = sys.maxsize,
        compute: Compute = PLAIN,
    ) -> TopK:
        """The teacher's ``k`` likeliest ids at each target's position, whatever was drawn there.

        All ids if the vocabulary has fewer than ``k``.

        Args:
            micro_batch: the policy's.
            samples: those that were packed; a teacher with hints reads them behind other prompts.
            k: ids a target.
            max_rows: rows of a pass, where the teacher needs packing of its own.
            compute: how the pass computes.
        """
        members, member_R = np.unique(micro_batch.sample_R, return_inverse=True)
        more_M = np.array([num_tokens_more(samples[i]) for i in members])
        if all(samples[i].teacher_prompt_ids is None for i in members):
            return self._top_k(micro_batch, samples, k, compute=compute)
        reads = [as_the_teacher_reads(samples[i]) for i in members]
        start_M = np.cumsum([0, *map(len, reads)])
        slot_R = start_M[member_R] + micro_batch.position_R + more_M[member_R]
        is_target = np.zeros(start_M[-1], bool)
        is_target[slot_R] = True
        place_of_slot = np.full(start_M[-1], -1)
        place_of_slot[slot_R] = np.arange(len(slot_R))
        ids_RK = np.zeros((len(slot_R), min(k, self.model.head.vocab_limit)), np.int64)
        log_probs_RK = np.zeros(ids_RK.shape, np.float32)
        for batch in pack(reads, np.split(is_target, start_M[1:-1]), max_rows=max_rows):
            found = self._top_k(batch, reads, k, compute=compute)
            place = place_of_slot[start_M[batch.sample_R] + batch.position_R]
            ids_RK[place], log_probs_RK[place] = found.ids_RK, found.log_probs_RK
        return TopK(ids_RK, log_probs_RK)

    @torch.no_grad()
    def _top_k(
        self, micro_batch: MicroBatch, samples: Sequence[Sample], k: int, *, compute: Compute
    ) -> TopK:
        inputs = forward_to_head(self.model, micro_batch, samples, compute=compute)
        head = self.model.head
        k = min(k, head.vocab_limit)
        found = top_k_log_probs(inputs.hidden_UD, head, k, inputs.temperature_U, compute=compute)
        return TopK(*(to_host(column_UK.index_select(0, inputs.place_R)) for column_UK in found))
