import numpy as np
import torch
from helpers.planted_fault import planted_fault
from helpers.sequences import make_sequence
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT

from zerogap.engine.batch import build_batch
from zerogap.engine.plan import StepPlan
from zerogap.engine.runner import ModelRunner
from zerogap.engine.sequence import Sequence

PROMPT = np.arange(5, 25, dtype=np.int32)


def sequence(pages: list[int], *, prompt=PROMPT, index: int = 0) -> Sequence:
    made = make_sequence(prompt, index=index, seed=3, max_new_tokens=8)
    made.append_pages(pages)
    return made


def run(runner: ModelRunner, *sequences_and_rows, copies=()):
    plan = StepPlan(100)
    for member, num_rows in sequences_and_rows:
        plan.add(member, num_rows)
    plan.page_copies += copies
    return runner.run(build_batch(plan))


def test_a_sibling_draws_from_the_leaders_hidden_state():
    runner = ModelRunner(tiny_model(), num_pages=8)
    leader = sequence([0, 1], index=1)
    first = run(runner, (leader, 20))
    forked = sequence([0, 2], index=1)
    forked.num_computed = 20
    forked.prompt_hidden_D = first.hidden_RD[0].clone()
    bystander = sequence([3], prompt=PROMPT[:3])
    second = run(runner, (forked, 0), (bystander, 3), copies=[(1, 2)])
    EXACT.check(second.hidden_RD[0], first.hidden_RD[0])
    EXACT.check(second.token_R[:1], first.token_R)
    EXACT.check(second.log_prob_R[:1], first.log_prob_R)
    alone = run(runner, (forked, 0))
    EXACT.check(alone.log_prob_R, first.log_prob_R)


def test_a_copied_page_is_copied_in_every_layer_before_it_is_written():
    runner = ModelRunner(tiny_model(), num_pages=8)
    original = sequence([0, 1])
    original.append_token(int(run(runner, (original, 20)).token_R[0]), -1.0, 0.0, 0)
    original.num_computed = 20
    copy = sequence([0, 2])
    copy.append_token(int(original.output_ids[0]), -1.0, 0.0, 0)
    copy.num_computed = 20
    expected = run(runner, (original, 1))
    EXACT.check(run(runner, (copy, 1), copies=[(1, 2)]).log_prob_R, expected.log_prob_R)
    with planted_fault("the page was not copied"):
        copy.pages[1] = 5
        EXACT.check(run(runner, (copy, 1)).log_prob_R, expected.log_prob_R)


def test_copies_in_a_row_read_before_they_write():
    runner = ModelRunner(tiny_model(), num_pages=4)
    runner._k_LPKHS.copy_(torch.randn_like(runner._k_LPKHS))
    before = runner._k_LPKHS.clone()
    runner._copy_pages([(0, 1), (1, 2)])
    EXACT.check(runner._k_LPKHS[:, 1], before[:, 0])
    EXACT.check(runner._k_LPKHS[:, 2], before[:, 1])


def test_the_models_parameters_are_read_in_place():
    model = tiny_model()
    runner = ModelRunner(model, num_pages=2)
    before = run(runner, (sequence([0, 1]), 20))
    with torch.no_grad():
        model.head_weight[7] += 1.0
    after = run(runner, (sequence([0, 1]), 20))
    EXACT.check(after.hidden_RD, before.hidden_RD)
    assert not np.array_equal(after.log_prob_R, before.log_prob_R)
    assert not after.hidden_RD.requires_grad


def test_clearing_leaves_zeros():
    runner = ModelRunner(tiny_model(), num_pages=2)
    run(runner, (sequence([0, 1]), 20))
    runner.clear()
    assert not runner._k_LPKHS.any()
    assert not runner._v_LPKSH.any()
