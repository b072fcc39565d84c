"""A teacher that reads another prompt scores the same tokens: float64 over each sequence alone, whatever is packed with it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.loss_cases import hinted
from helpers.packed_rows import PackedRows
from helpers.planted_fault import assert_notices
from helpers.tiny_models import tiny_model, weights_of
from helpers.tolerance import EXACT, FP32_MODEL
from helpers.train_batches import VOCAB, make_groups, rewarded, train_on

from zerogap.algorithms import Algorithm
from zerogap.config.train import TrainConfig
from zerogap.errors import ConfigError
from zerogap.train import NativeTrainer, Teacher
from zerogap.train.packing import pack

SAMPLES = rewarded(hinted(make_groups(2, 4, seed=3, temperature=0.7)), seed=1)
K = 6


def teacher_table(estimator, **more):
    table = {"hint": {"kind": "success"}, "estimator": estimator, "top_k": K, **more}
    return Algorithm.preset("distillation", teacher=table)


def trainer(algorithm, **train):
    config = TrainConfig(**{"learning_rate": 0.0, "max_grad_norm": 1e9, **train})
    return NativeTrainer(tiny_model(), config, algorithm, total_steps=10)


def all_log_probs(model, prompt_ids, sample):
    """float64 [n, V]: of each token after the prompt, behind these ids."""
    completion = sample.token_ids[sample.num_prompt_tokens :].tolist()
    with torch.no_grad():
        logits_TV = PackedRows([[*prompt_ids, *completion]]).logits(model).double()
    return (logits_TV[len(prompt_ids) - 1 : -1] / sample.temperature).log_softmax(-1)


def of_teacher_and_policy(sample, prompt_ids=None):
    """(teacher's, policy's) log-probs [n, V] at the trained tokens, and these tokens."""
    start = sample.num_prompt_tokens
    trains = torch.tensor(sample.loss_mask[start:])
    hint = sample.teacher_prompt_ids if prompt_ids is None else prompt_ids
    plain = sample.token_ids[:start].tolist()
    model = tiny_model()
    found = [all_log_probs(model, ids, sample)[trains] for ids in (hint, plain)]
    return *found, torch.tensor(sample.token_ids[start:])[trains].long()


@pytest.mark.parametrize("layout", [{}, {"micro_batch_tokens": 1}, {"share_prompts": False}])
def test_the_advantage_is_the_hinted_log_prob_less_the_plain_one(layout):
    plan = trainer(teacher_table("sampled", weight=0.5), **layout).plan(SAMPLES)
    for i, (sample, advantages_T) in enumerate(
        zip(SAMPLES, plan.tokens.index.split(plan.advantages.column_S), strict=True)
    ):
        own = advantages_T[sample.loss_mask]
        if sample.teacher_prompt_ids is None:
            assert (own == 0).all()
            continue
        teacher_nV, policy_nV, drawn_n = of_teacher_and_policy(sample)

        def check(teacher_nV, own=own, policy_nV=policy_nV, drawn_n=drawn_n):
            difference = (teacher_nV - policy_nV).gather(1, drawn_n[:, None])[:, 0]
            FP32_MODEL.check(own, 0.5 * difference)

        check(teacher_nV)
        others = [s.teacher_prompt_ids for s in SAMPLES if s.teacher_prompt_ids not in (None, sample.teacher_prompt_ids)]  # fmt: skip
        plain = sample.token_ids[: sample.num_prompt_tokens].tolist()
        for what, ids in (("the plain prompt", plain), ("another hint", others[0])):
            wrong = of_teacher_and_policy(sample, ids)[0]
            assert_notices(f"{what} for sample {i}", lambda wrong=wrong, check=check: check(wrong))
        if len(own) > 1:
            late = teacher_nV.roll(1, 0)
            assert_notices("one token later", lambda late=late, check=check: check(late))


def kl_with_rest(policy_nV, teacher_nV, direction):
    """The mean over tokens of the KL over the teacher's K ids and the rest, a plain float64 loop."""
    total = 0.0
    for policy_V, teacher_V in zip(policy_nV, teacher_nV, strict=True):
        best = teacher_V.topk(K).indices
        p, q = policy_V[best].exp(), teacher_V[best].exp()
        p, q = torch.cat([p, 1 - p.sum()[None]]), torch.cat([q, 1 - q.sum()[None]])
        if direction == "reverse":
            total += float((p * (p / q).log()).sum())
        else:
            total += float((q * (q / p).log()).sum())
    return total


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_loss_is_the_kl_over_the_ids_that_the_hinted_teacher_prefers(direction):
    algorithm = teacher_table("top_k", direction=direction)
    num_tokens = sum(s.num_loss_tokens for s in SAMPLES)
    taught = [s for s in SAMPLES if s.teacher_prompt_ids is not None]

    def expected(prompt_of):
        found = [of_teacher_and_policy(s, prompt_of(s)) for s in taught]
        return sum(kl_with_rest(p, q, direction) for q, p, _ in found)

    metrics = train_on(trainer(algorithm), SAMPLES)
    total, wrong = expected(lambda s: None), expected(lambda s: s.token_ids[: s.num_prompt_tokens].tolist())  # fmt: skip
    # The denominator counts the tokens of samples without a hint too.
    FP32_MODEL.check(metrics.loss, total / num_tokens)
    FP32_MODEL.check(metrics.kl_to_teacher, total / sum(s.num_loss_tokens for s in taught))
    assert_notices("the plain prompt", lambda: FP32_MODEL.check(metrics.loss, wrong / num_tokens))


def test_siblings_on_one_row_keep_the_ids_of_their_own_hint():
    """Two equal completions share rows and targets; their teachers read different prompts."""
    first = next(s for s in SAMPLES if s.teacher_prompt_ids is not None)
    twin = replace(first, rollout_id="twin", teacher_prompt_ids=tuple(range(60, 75)))

    def loss(samples):
        return train_on(trainer(teacher_table("top_k")), samples)

    alone = [loss([one]).loss for one in (first, twin)]
    both = loss([first, twin])
    assert both.num_rows_saved > 0
    FP32_MODEL.check(both.loss, sum(alone) / 2)
    assert_notices("one hint for both", lambda: FP32_MODEL.check(both.loss, alone[0]))


def test_the_likeliest_ids_do_not_depend_on_the_teachers_packing():
    teacher = Teacher(tiny_model(seed=3), vocab_limit=VOCAB)
    for batch in pack(SAMPLES, [s.loss_mask for s in SAMPLES], max_rows=80):
        whole = teacher.top_k(batch, SAMPLES, K)
        cut = teacher.top_k(batch, SAMPLES, K, max_rows=1)
        EXACT.check([cut.ids_RK, cut.log_probs_RK], [whole.ids_RK, whole.log_probs_RK])
        plain = teacher.top_k(batch, [replace(s, teacher_prompt_ids=None) for s in SAMPLES], K)
        with pytest.raises(AssertionError):
            EXACT.check(plain.log_probs_RK, whole.log_probs_RK)


@pytest.mark.parametrize(
    ("refresh", "is_equal"), [({"every": 1}, True), ({"every": 99}, False), (None, True)]
)
def test_a_copy_of_every_step_is_the_policy_itself(refresh, is_equal):
    algorithm = teacher_table("sampled", **({} if refresh is None else {"refresh": refresh}))
    live = trainer(teacher_table("sampled"), learning_rate=1e-2)
    copy = Teacher(tiny_model(), vocab_limit=VOCAB) if algorithm.loads_teacher else None
    config = TrainConfig(learning_rate=1e-2, max_grad_norm=1e9)
    other = NativeTrainer(tiny_model(), config, algorithm, total_steps=10, teacher=copy)
    for _ in range(3):
        for one in (live, other):
            train_on(one, SAMPLES)
    found = [weights_of(one.model) for one in (live, other)]
    if is_equal:
        EXACT.check(*found)
    else:
        with pytest.raises(AssertionError):
            EXACT.check(*found)


def test_a_teacher_is_given_exactly_when_it_is_not_the_policy():
    teacher = Teacher(tiny_model(), vocab_limit=VOCAB)
    config = TrainConfig()
    with pytest.raises(
        ConfigError, match="whose teacher is the policy itself, was given a teacher"
    ):
        NativeTrainer(tiny_model(), config, teacher_table("sampled"), total_steps=1, teacher=teacher)  # fmt: skip
    moving = teacher_table("sampled", refresh={"every": 1})
    with pytest.raises(ConfigError, match=r"a \[teacher\] table was given no teacher"):
        NativeTrainer(tiny_model(), config, moving, total_steps=1)


def test_no_hint_at_all_trains_nothing():
    samples = [replace(s, teacher_prompt_ids=None) for s in SAMPLES]
    for estimator in ("sampled", "top_k"):
        one = trainer(teacher_table(estimator), learning_rate=1e-2)
        before = weights_of(one.model)
        metrics = train_on(one, samples)
        assert metrics.grad_norm == 0.0
        assert metrics.kl_to_teacher is None or np.isnan(metrics.kl_to_teacher)
        EXACT.check(weights_of(one.model), before)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({}, "has nothing to teach; set path, or add the table hint"),
        ({"path": "t", "refresh": {"every": 1}}, "does not follow the policy; remove one"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused(table, why):
    with pytest.raises(ValueError, match=why):
        Algorithm.preset("distillation", teacher=table)
