import numpy as np
import pytest
from helpers.train_batches import make_sample

from zerogap.errors import DataError
from zerogap.train import pack


def packed(samples, *, max_rows=1000, share_prompts=True):
    targets = [sample.loss_mask for sample in samples]
    return pack(samples, targets, max_rows=max_rows, share_prompts=share_prompts)


def test_the_last_prompt_row_predicts_the_first_token_of_every_sibling():
    siblings = [make_sample([5, 6, 7], [10 + i, 20 + i], index=i) for i in range(3)]
    (batch,) = packed(siblings)
    assert batch.token_ids_T.tolist() == [5, 6, 7, 10, 11, 12]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 3, 3]
    assert batch.source_row_R.tolist() == [2, 3, 2, 4, 2, 5]
    assert batch.target_R.tolist() == [10, 20, 11, 21, 12, 22]
    assert batch.sample_R.tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.num_rows_saved == 6


def test_without_sharing_every_sample_has_its_own_prompt():
    siblings = [make_sample([5, 6, 7], [10 + i, 20 + i], index=i) for i in range(2)]
    (batch,) = packed(siblings, share_prompts=False)
    assert batch.token_ids_T.tolist() == [5, 6, 7, 10, 5, 6, 7, 11]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert batch.num_rows_saved == 0


def test_rows_after_the_last_target_are_not_computed():
    sample = make_sample([1, 2], [3, 4, 5, 6], loss_mask=[True, False, False, False])
    (batch,) = packed([sample])
    assert batch.token_ids_T.tolist() == [1, 2]
    assert batch.target_R.tolist() == [3]


def test_one_token_completions_need_the_prompt_only():
    siblings = [make_sample([1, 2], [10 + i], index=i) for i in range(4)]
    (batch,) = packed(siblings)
    assert batch.token_ids_T.tolist() == [1, 2]
    assert batch.source_row_R.tolist() == [1, 1, 1, 1]
    assert batch.target_R.tolist() == [10, 11, 12, 13]


def test_sampled_tokens_are_shared_as_far_as_they_agree():
    completions = [[3, 4, 5, 9], [3, 4, 6, 9], [3, 7]]
    siblings = [make_sample([1, 2], c, index=i) for i, c in enumerate(completions)]
    (batch,) = packed(siblings)
    assert batch.token_ids_T.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 4, 4]
    found = zip(
        batch.sample_R.tolist(), batch.source_row_R.tolist(), batch.target_R.tolist(), strict=True
    )
    assert sorted(found) == [
        (0, 1, 3), (0, 2, 4), (0, 3, 5), (0, 4, 9),
        (1, 1, 3), (1, 2, 4), (1, 3, 6), (1, 5, 9),
        (2, 1, 3), (2, 2, 7),
    ]  # fmt: skip
    assert batch.num_rows_saved == 5 + 5 + 3 - 6


def test_equal_samples_are_computed_once_and_each_keeps_its_targets():
    siblings = [make_sample([1, 2], [3, 4, 5], index=i) for i in range(3)]
    (batch,) = packed(siblings, max_rows=1)
    assert batch.token_ids_T.tolist() == [1, 2, 3, 4]
    assert batch.sample_R.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_sample_that_another_goes_on_from_adds_no_rows():
    # A rollout of two turns, cut into samples: the second contains the first.
    first = make_sample([1, 2], [3, 4], index=0)
    second = make_sample([1, 2, 3, 4, 5, 6], [7, 8], index=1)
    (batch,) = packed([second, first])
    assert batch.token_ids_T.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert batch.sample_R.tolist() == [1, 1, 0, 0]
    assert batch.source_row_R.tolist() == [1, 2, 5, 6]


def test_prompts_are_shared_as_far_as_they_agree():
    siblings = [make_sample([1, 2, 3 + i], [9, 9], index=i) for i in range(2)]
    (batch,) = packed(siblings)
    assert batch.token_ids_T.tolist() == [1, 2, 3, 9, 4, 9]
    assert batch.positions_T.tolist() == [0, 1, 2, 3, 2, 3]


def test_equal_prompts_of_different_groups_are_not_shared():
    # Members are found by group id and by nothing else.
    samples = [make_sample([1, 2], [3, 4], group_id=f"g{i}") for i in range(2)]
    (batch,) = packed(samples)
    assert batch.num_rows == 6


def test_a_group_beyond_the_budget_is_split_and_each_part_has_the_prompt():
    siblings = [make_sample([1, 2, 3, 4], [10 + i, 6, 7], index=i) for i in range(5)]
    batches = packed(siblings, max_rows=8)
    assert [b.num_rows for b in batches] == [8, 8, 6]
    assert all(b.token_ids_T.tolist()[:4] == [1, 2, 3, 4] for b in batches)
    assert sorted(b.num_rows_repeated for b in batches) == [0, 4, 4]


def test_a_group_is_cut_where_its_samples_part():
    # Two branches of 10 rows, each with three ends: full micro-batches would cut within a branch.
    siblings = [make_sample([1, *[5 + b] * 9], [20 + e, 3, 4], index=3 * b + e) for b in range(2) for e in range(3)]  # fmt: skip
    batches = packed(siblings, max_rows=20)
    assert [set(b.sample_R.tolist()) for b in batches] == [{0, 1, 2}, {3, 4, 5}]
    assert [b.num_rows for b in batches] == [16, 16]
    assert [b.num_rows_repeated for b in batches] == [0, 1]


def test_a_sample_beyond_the_budget_is_alone():
    long = make_sample(range(30), [1, 2], group_id="long")
    short = make_sample([1], [2, 3], group_id="short")
    batches = packed([short, long], max_rows=10)
    assert [set(b.sample_R.tolist()) for b in batches] == [{1}, {0}]


def test_samples_without_a_target_are_left_out():
    samples = [make_sample([1, 2], [3], loss_mask=[False]), make_sample([1, 2], [4], index=1)]
    (batch,) = packed(samples)
    assert batch.sample_R.tolist() == [1]
    assert packed(samples[:1]) == []


def test_a_target_without_a_predecessor_is_refused():
    sample = make_sample([], [1, 2])
    with pytest.raises(DataError, match="g0/0: its first token"):
        packed([sample])


def test_a_mask_of_another_length_is_refused():
    with pytest.raises(DataError, match=r"mask of shape \(2,\) for 3 tokens"):
        pack([make_sample([1, 2], [3])], [np.ones(2, bool)], max_rows=10)
