import numpy as np
import pytest
import torch
from helpers.sequences import make_sequence

from zerogap.engine.batch import build_batch
from zerogap.engine.plan import StepPlan
from zerogap.engine.sequence import ScoreTask, Sequence


def sequence(length: int, *, pages, num_computed=0, score=None, **params) -> Sequence:
    prompt_ids = np.arange(100, 100 + length)
    made = make_sequence(prompt_ids, score=score, max_new_tokens=0 if score else 4, **params)
    made.append_pages(pages)
    made.num_computed = num_computed
    return made


def test_rows_carry_ids_positions_slots_and_their_sequence():
    plan = StepPlan(100)
    plan.add(sequence(18, pages=[5, 2], num_computed=14), 4)
    plan.add(sequence(3, pages=[7]), 2)
    batch = build_batch(plan)
    rows = batch.rows
    assert rows.token_ids_T.tolist() == [114, 115, 116, 117, 100, 101]
    assert rows.row_sequence_T.tolist() == [0, 0, 0, 0, 1, 1]
    assert rows.row_position_T.tolist() == [14, 15, 16, 17, 0, 1]
    assert rows.write_row_W[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert rows.write_slot_W.tolist() == [94, 95, 32, 33, 112, 113, *[-1] * 58]
    assert rows.page_table_BP[:, :2].tolist() == [[5, 2], [7, 0], *[[0, 0]] * 4]
    assert not rows.page_table_BP[:, 2:].any()
    assert batch.draws.row_R.tolist() == [3], "only a sequence that misses nothing draws"


@pytest.mark.parametrize(("num_rows", "padded"), [(1, 1), (7, 7), (8, 8), (9, 16), (17, 24)])
def test_from_eight_rows_on_the_last_tile_is_filled_with_unseen_rows(num_rows, padded):
    plan = StepPlan(100)
    plan.add(sequence(40, pages=[5, 2, 4]), num_rows)
    rows = build_batch(plan).rows
    assert rows.token_ids_T[num_rows:].tolist() == [0] * (padded - num_rows)
    assert rows.row_position_T[num_rows:].tolist() == [-1] * (padded - num_rows)
    assert (rows.write_slot_W >= 0).sum() == num_rows
    assert rows.page_table_BP.shape == (padded, 16)


def decoding(num_tokens, pages, branch):
    made = sequence(num_tokens, pages=pages, num_computed=num_tokens - 1)
    made.branch = branch
    return made


def test_duplicates_share_a_row_and_each_has_its_key_and_value_on_its_own_pages():
    plan = StepPlan(100)
    for pages, branch in (([3], 7), ([4], 8), ([5], 7), ([6], 0), ([9], 0), ([8], 7)):
        plan.add(decoding(6, pages, branch), 1)
    batch = build_batch(plan)
    assert plan.budget == 100 - 4
    assert (batch.rows.row_position_T >= 0).sum() == 4
    assert batch.draws.row_R.tolist() == [0, 1, 0, 2, 3, 0]
    assert batch.draws.same_R.tolist() == [0, 1, 0, 3, 4, 0]
    assert batch.rows.write_row_W[:6].tolist() == [0, 1, 2, 3, 0, 0]
    offset = 5
    slots = [page * 16 + offset for page in (3, 4, 6, 9, 5, 8)]
    assert batch.rows.write_slot_W[:6].tolist() == slots


def test_rows_after_duplicates_stand_where_they_are():
    plan = StepPlan(100)
    plan.add(decoding(6, [3], 7), 1)
    plan.add(decoding(6, [4], 7), 1)
    plan.add(sequence(3, pages=[7]), 3)
    batch = build_batch(plan)
    assert batch.rows.row_position_T.tolist() == [5, 0, 1, 2]
    assert batch.draws.row_R.tolist() == [0, 0, 3]


def test_a_draw_with_edited_logits_shares_them_with_no_other():
    plan = StepPlan(100)
    hidden_D = torch.zeros(4)
    for i, bias in enumerate(({}, {3: 1.0}, {}, {3: 1.0})):
        made = sequence(16, pages=[i], num_computed=16, logit_bias=bias)
        made.prompt_hidden_D = hidden_D
        plan.add(made, 0)
    assert build_batch(plan).draws.same_R.tolist() == [0, 1, 0, 3]


@pytest.mark.parametrize(("num_pages", "width"), [(1, 16), (16, 16), (17, 32), (33, 64)])
def test_the_page_table_has_few_widths(num_pages, width):
    plan = StepPlan(2000)
    plan.add(sequence(16 * num_pages, pages=list(range(num_pages))), 1)
    assert build_batch(plan).rows.page_table_BP.shape == (1, width)


def test_a_sequence_without_rows_draws_from_its_siblings_prompt():
    plan = StepPlan(100)
    forked = sequence(16, pages=[1], num_computed=16)
    plan.add(forked, 0)
    plan.add(sequence(5, pages=[3], num_computed=4), 1)
    batch = build_batch(plan)
    assert batch.draws.row_R.tolist() == [-1, 0]
    assert batch.draws.sequences[0] is forked
    assert batch.rows.row_sequence_T[0] == 0
    assert batch.rows.page_table_BP[:, :1].tolist() == [[3]]


def test_a_step_may_have_no_rows_at_all():
    plan = StepPlan(100)
    plan.add(sequence(16, pages=[1], num_computed=16), 0)
    batch = build_batch(plan)
    assert len(batch.rows.token_ids_T) == 0
    assert len(batch.draws.sequences) == 1


def test_scored_rows_are_those_that_precede_a_scored_token():
    plan = StepPlan(100)
    task = ScoreTask(4, 0.5, np.zeros(6, np.float32))
    plan.add(sequence(2, pages=[3]), 2)
    plan.add(sequence(10, pages=[1], num_computed=1, score=task), 5)
    scores = build_batch(plan).scores
    assert [(t, list(rows)) for t, rows in scores.tasks] == [(task, [3, 4, 5])]
    assert scores.row_Q.tolist() == [4, 5, 6]
    assert scores.target_Q.tolist() == [104, 105, 106]
    assert scores.temperature_Q.tolist() == [0.5] * 3


def test_a_chunk_before_the_scored_part_scores_nothing():
    plan = StepPlan(100)
    task = ScoreTask(8, 1.0, np.zeros(2, np.float32))
    plan.add(sequence(10, pages=[1], score=task), 3)
    scores = build_batch(plan).scores
    assert len(scores.row_Q) == len(scores.target_Q) == 0
