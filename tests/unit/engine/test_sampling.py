import numpy as np
import torch
from helpers.sequences import make_sequence
from helpers.tolerance import EXACT

from zerogap.engine.sampling import build_sampling_rows
from zerogap.engine.sequence import Sequence
from zerogap.kernels import position_uniform

CPU = torch.device("cpu")


def sequence(*, seed=9, **given) -> Sequence:
    return make_sequence([3, 4], seed=seed, **given)


def test_each_row_has_its_own_parameters():
    rows = build_sampling_rows(
        [
            sequence(temperature=0.3, top_k=5),
            sequence(temperature=0.0),
            sequence(top_p=0.9, min_p=0.1),
        ],
        CPU,
    )
    EXACT.check(rows.temperature_R, np.array([0.3, 1, 1], np.float32))
    assert rows.greedy_R.tolist() == [False, True, False]
    assert rows.top_k_R.tolist() == [5, -1, -1]
    EXACT.check(rows.top_p_R, np.array([1, 1, 0.9], np.float32))
    EXACT.check(rows.min_p_R, np.array([0, 0, 0.1], np.float32))


def test_greedy_begins_below_one_millionth():
    rows = build_sampling_rows([sequence(temperature=9e-7), sequence(temperature=1e-6)], CPU)
    assert rows.greedy_R.tolist() == [True, False]
    EXACT.check(rows.temperature_R, np.array([1, 1e-6], np.float32))


def test_noise_is_keyed_by_seed_sibling_and_place_alone():
    huge = 2**62 + 1
    members = [
        sequence(),
        sequence(index=3, num_output=4),
        sequence(seed=-huge),
        sequence(seed=huge),
    ]
    together = build_sampling_rows(members, CPU).uniform_R
    alone = np.concatenate([build_sampling_rows([s], CPU).uniform_R for s in members])
    EXACT.check(together, alone)
    expected = position_uniform(
        np.array([9, 9, -huge, huge]), np.array([0, 3, 0, 0]), np.array([0, 4, 0, 0])
    )
    EXACT.check(together, expected)
    assert len(set(together.tolist())) == 4


def test_edits_are_listed_row_by_row():
    rows = build_sampling_rows(
        [sequence(logit_bias={7: 1.5}), sequence(), sequence(repetition_penalty=2.0)],
        CPU,
    )
    assert rows.edit_offsets.tolist() == [0, 1, 1, 3]
    assert rows.edit_ids.tolist() == [7, 3, 4]
    assert rows.edit_scale.tolist() == [1, 2, 2]
    assert rows.edit_add.tolist() == [1.5, 0, 0]


def test_no_rows_are_no_rows():
    rows = build_sampling_rows([], CPU)
    assert len(rows.temperature_R) == len(rows.edit_ids) == 0
    assert rows.edit_offsets.tolist() == [0]
