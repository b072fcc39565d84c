import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.loss_batches import surrogate_of
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from torch import Tensor

from zerogap.algorithms import ReinforceLoss, distillation_advantages, top_k_kl
from zerogap.errors import NumericsError

DIRECTIONS = ["reverse", "forward"]


def distributions(rows=12, vocab=40, scale=2.0):
    generator = torch.Generator().manual_seed(0)
    logits, teacher = scale * torch.randn(2, rows, vocab, dtype=torch.float64, generator=generator)
    return logits, teacher.log_softmax(-1)


def at_top_k(logits: Tensor, teacher: Tensor, num_ids: int):
    logits = logits.clone().requires_grad_()
    ids = teacher.topk(num_ids, dim=1).indices
    return logits, logits.log_softmax(-1).gather(1, ids), teacher.gather(1, ids), ids


def loop_kl(logits, teacher, ids, direction):
    """By the definition, with the remaining ids summed one by one."""
    result = []
    for row in range(len(logits)):
        chosen = set(ids[row].tolist())
        policy_row, teacher_row = logits.softmax(-1)[row].tolist(), teacher.exp()[row].tolist()
        pairs = [(policy_row[i], teacher_row[i]) for i in chosen]
        left = [i for i in range(len(policy_row)) if i not in chosen]
        if left:
            pairs.append((sum(policy_row[i] for i in left), sum(teacher_row[i] for i in left)))
        if direction == "forward":
            pairs = [(q, p) for p, q in pairs]
        result.append(sum(p * math.log(p / q) for p, q in pairs))
    return np.array(result)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_top_k_kl_matches_the_loop(direction):
    logits, teacher = distributions()
    _, policy_RK, teacher_RK, ids = at_top_k(logits, teacher, 5)
    found = top_k_kl(policy_RK, teacher_RK, torch.ones(12, dtype=torch.bool), direction=direction)
    FLOAT64_SAME_OP.check(found, loop_kl(logits, teacher, ids, direction))
    other = loop_kl(logits, teacher, ids, DIRECTIONS[direction == "reverse"])
    assert_notices("the other direction", lambda: FLOAT64_SAME_OP.check(found, other))
    without_rest = (policy_RK.exp() * (policy_RK - teacher_RK)).sum(1)
    assert_notices("no bucket", lambda: FLOAT64_SAME_OP.check(without_rest, found))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_gradient_to_the_logits_is_that_of_the_merged_distribution(direction):
    logits, teacher = distributions()
    leaf, policy_RK, teacher_RK, ids = at_top_k(logits, teacher, 5)
    top_k_kl(policy_RK, teacher_RK, torch.ones(12, dtype=torch.bool), direction=direction).sum().backward()  # fmt: skip
    other = logits.clone().requires_grad_()
    is_left = torch.ones_like(other, dtype=torch.bool).scatter(1, ids, False)

    def merged(log_probs):
        rest = log_probs.masked_fill(~is_left, -math.inf).logsumexp(1, keepdim=True)
        return torch.cat([log_probs.gather(1, ids), rest], 1)

    p, q = merged(other.log_softmax(-1)), merged(teacher)
    expected = (p.exp() * (p - q)) if direction == "reverse" else (q.exp() * (q - p))
    expected.sum().backward()
    FLOAT64_SAME_OP.check(leaf.grad, other.grad)
    assert_notices(
        "one percent too strong", lambda: FLOAT64_SAME_OP.check(1.01 * leaf.grad, other.grad)
    )


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_all_ids_give_the_whole_kl_and_fewer_a_lower_bound(direction):
    logits, teacher = distributions()
    everything = torch.ones(12, dtype=torch.bool)

    def kl(num_ids):
        leaf, policy_RK, teacher_RK, _ = at_top_k(logits, teacher, num_ids)
        value = top_k_kl(policy_RK, teacher_RK, everything, direction=direction)
        value.sum().backward()
        return value.detach(), leaf.grad

    whole = logits.clone().requires_grad_()
    p, q = (whole.log_softmax(-1), teacher) if direction == "reverse" else (teacher, whole.log_softmax(-1))  # fmt: skip
    full = (p.exp() * (p - q)).sum(1)
    full.sum().backward()
    FLOAT64_SAME_OP.check(kl(40), (full.detach(), whole.grad))
    values = [kl(num_ids)[0] for num_ids in (1, 3, 10, 40)]
    for fewer, more in pairwise(values):
        assert (fewer <= more + 1e-12).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("policy_mass", [1.0, 1.0 + 3e-7, 1.0 - 1e-9])
def test_a_policy_with_no_mass_outside_still_feels_the_teachers(direction, policy_mass):
    # fp32 rounding can put the sum over the ids at 1 or beyond it.
    policy_RK = torch.tensor([[0.7, 0.3]]).mul(policy_mass).log().requires_grad_()
    teacher_RK = torch.tensor([[0.5, 0.2]]).log()
    value = top_k_kl(policy_RK, teacher_RK, torch.tensor([True]), direction=direction)
    value.sum().backward()
    assert value.isfinite().all()
    assert value > 0.05
    assert policy_RK.grad.isfinite().all()
    if direction == "forward":
        # -q at the ids alone would push their mass up; the bucket pushes it down, and harder.
        assert (policy_RK.grad > 0).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_equal_policies_have_no_divergence_and_no_gradient(direction):
    _, teacher = distributions()
    leaf, policy_RK, teacher_RK, _ = at_top_k(teacher, teacher, 5)
    value = top_k_kl(policy_RK, teacher_RK, torch.ones(12, dtype=torch.bool), direction=direction)
    value.sum().backward()
    FLOAT64_SAME_OP.check((value, leaf.grad), (torch.zeros(12), torch.zeros(12, 40)))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_masked_row_reaches_neither_value_nor_gradient(direction):
    policy_RK = torch.tensor([[-1.0, -2.0], [math.nan, -math.inf]], requires_grad=True)
    teacher_RK = torch.tensor([[-1.5, -1.0], [math.nan, math.inf]])
    mask = torch.tensor([True, False])
    value = top_k_kl(policy_RK, teacher_RK, mask, direction=direction)
    value.sum().backward()
    alone = policy_RK.detach()[:1].requires_grad_()
    expected = top_k_kl(alone, teacher_RK[:1], mask[:1], direction=direction)
    expected.sum().backward()
    EXACT.check(value.detach(), torch.cat([expected.detach(), torch.zeros(1).double()]))
    EXACT.check(policy_RK.grad, torch.cat([alone.grad, torch.zeros(1, 2)]))
    with pytest.raises(NumericsError, match="the log-prob of row 1 is nan"):
        top_k_kl(
            policy_RK, teacher_RK, torch.ones(2, dtype=torch.bool), direction=direction,
            name_token=lambda row: f"row {row}",
        )  # fmt: skip


def test_rows_are_independent_of_each_other():
    logits, teacher = distributions()
    _, policy_RK, teacher_RK, _ = at_top_k(logits, teacher, 5)
    everything = torch.ones(12, dtype=torch.bool)
    whole = top_k_kl(policy_RK, teacher_RK, everything, direction="reverse")
    order = torch.randperm(12)
    parts = [
        top_k_kl(policy_RK[rows], teacher_RK[rows], everything[rows], direction="reverse")
        for rows in order.split(5)
    ]
    EXACT.check(torch.cat(parts).detach(), whole[order].detach())


def test_the_sampled_advantage_is_the_teachers_opinion_unclipped():
    teacher = np.array([-0.5, np.nan, -40.0], np.float32)
    policy = np.array([-1.0, np.nan, -0.25], np.float32)
    mask = np.array([True, False, True])
    found = distillation_advantages(teacher, policy, mask)
    EXACT.check(found, np.array([0.5, 0.0, -39.75]))
    with pytest.raises(NumericsError, match="teacher log-prob of token 1"):
        distillation_advantages(teacher, policy, np.ones(3, bool))


def test_the_sampled_gradient_has_the_reverse_kls_as_its_expectation():
    # Exactly: every token of the vocabulary, weighted by its probability, instead of sampled ones.
    logits, teacher = distributions(rows=1)
    leaf = logits[0].clone().requires_grad_()
    log_probs = leaf.log_softmax(-1)
    policy = log_probs.detach()
    advantages = distillation_advantages(teacher[0].numpy(), policy.numpy(), np.ones(40, bool))

    def expected_gradient(advantages):
        columns = {
            "log_probs": log_probs, "old_log_probs": policy, "rollout_log_probs": policy, "advantages": torch.tensor(advantages),
            "sample": torch.arange(40), "sample_len": torch.ones(40, dtype=torch.int64),
        }  # fmt: skip
        terms = surrogate_of(ReinforceLoss(), columns).numerator_T
        (gradient,) = torch.autograd.grad((policy.exp() * terms).sum(), leaf, retain_graph=True)
        return gradient

    (whole,) = torch.autograd.grad((log_probs.exp() * (log_probs - teacher[0])).sum(), leaf, retain_graph=True)  # fmt: skip
    FLOAT64_SAME_OP.check(expected_gradient(advantages), whole)
    clipped = advantages.clip(-1, 1)
    assert_notices(
        "advantages clipped", lambda: FLOAT64_SAME_OP.check(expected_gradient(clipped), whole)
    )
