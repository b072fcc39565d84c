"""How the sequences of a step draw: parameters, logit edits and noise, as arrays for the kernel."""

import functools
from collections.abc import Sequence as Sequences

import numpy as np
import torch

from zerogap.engine.sequence import Sequence
from zerogap.kernels import SamplingRows, position_uniform, to_device


def build_sampling_rows(sequences: Sequences[Sequence], device: torch.device) -> SamplingRows:
    """One row for each sequence, in the given order.

    The noise of a draw is keyed by the request's seed, the sibling and the place in the completion, so it is the
    same in any batch, after any retraction, on any machine.
    """
    settings_RC = np.array([_settings(s) for s in sequences], np.float64).reshape(-1, 5)
    noise_R3 = np.array([(s.seed, s.index, s.num_output) for s in sequences], np.int64).reshape(
        -1, 3
    )
    offsets, ids, scale, add = _edits(sequences)
    column = functools.partial(to_device, device=device)
    return SamplingRows(
        temperature_R=column(settings_RC[:, 0].astype(np.float32)),
        greedy_R=column(settings_RC[:, 1].astype(bool)),
        top_k_R=column(settings_RC[:, 2].astype(np.int32)),
        top_p_R=column(settings_RC[:, 3].astype(np.float32)),
        min_p_R=column(settings_RC[:, 4].astype(np.float32)),
        uniform_R=column(position_uniform(noise_R3[:, 0], noise_R3[:, 1], noise_R3[:, 2])),
        edit_offsets=column(offsets),
        edit_ids=column(ids),
        edit_scale=column(scale),
        edit_add=column(add),
    )


def _settings(sequence: Sequence) -> tuple[float, bool, int, float, float]:
    params = sequence.params
    return params.score_temperature, params.is_greedy, params.top_k, params.top_p, params.min_p


def _edits(sequences: Sequences[Sequence]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    counts = np.zeros(len(sequences) + 1, np.int64)
    columns = [(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32))]
    for row, sequence in enumerate(sequences):
        if sequence.edits is not None:
            columns.append(sequence.edits.entries())
            counts[row + 1] = len(columns[-1][0])
    ids, scale, add = (np.concatenate(column) for column in zip(*columns, strict=True))
    return np.cumsum(counts), ids, scale, add
