import pytest
import torch
from helpers.packed_rows import PackedRows
from helpers.planted_fault import planted_fault
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT, FP32_MODEL, GRADIENT_NORM
from helpers.train_batches import VOCAB, make_groups

from zerogap.errors import ConfigError
from zerogap.train import Teacher
from zerogap.train.forward import score_candidates, score_micro_batch, scores
from zerogap.train.packing import pack

SAMPLES = make_groups(2, 3, temperature=0.7)
K = 5


def batches(max_rows=60):
    return pack(SAMPLES, [s.loss_mask for s in SAMPLES], max_rows=max_rows)


def expected_log_probs(model, batch):
    """float64 [R, V] at each target's position, from the model's logits over its sample alone."""
    rows = []
    with torch.no_grad():
        for b, position in zip(batch.sample_R, batch.position_R, strict=True):
            logits_TV = PackedRows([SAMPLES[b].token_ids.tolist()]).logits(model).double()
            rows.append((logits_TV[position - 1] / 0.7).log_softmax(-1))
    return torch.stack(rows)


def test_the_teacher_scores_what_was_drawn_and_what_it_would_draw():
    model = tiny_model(seed=3)
    teacher = Teacher(model, vocab_limit=VOCAB)
    for batch in batches():
        everything_RV = expected_log_probs(model, batch)
        best = everything_RV.sort(1, descending=True)
        top = teacher.top_k(batch, SAMPLES, K)
        ids_RK, found_RK = map(torch.from_numpy, (top.ids_RK, top.log_probs_RK))
        EXACT.check(ids_RK, best.indices[:, :K])
        FP32_MODEL.check(found_RK, best.values[:, :K])
        drawn = everything_RV.gather(1, torch.from_numpy(batch.target_R)[:, None]).squeeze(1)
        ((_, scored_R),) = scores(teacher.model, [batch], SAMPLES)
        FP32_MODEL.check(scored_R, drawn)
        with planted_fault("log-probs at temperature 1"):
            at_1 = (everything_RV * 0.7).log_softmax(1).gather(1, ids_RK)
            FP32_MODEL.check(found_RK, at_1)
        with planted_fault("the place before"):
            FP32_MODEL.check(found_RK[1:], best.values[:-1, :K])


def test_its_likeliest_ids_do_not_depend_on_the_micro_batch():
    teacher = Teacher(tiny_model(seed=3), vocab_limit=VOCAB)

    def by_token(max_rows):
        found = {}
        for batch in batches(max_rows):
            top = teacher.top_k(batch, SAMPLES, K)
            places = zip(batch.sample_R.tolist(), batch.position_R.tolist(), strict=True)
            found |= {p: (top.ids_RK[r], top.log_probs_RK[r]) for r, p in enumerate(places)}
        return [found[place] for place in sorted(found)]

    alone, together = by_token(1), by_token(10_000)
    EXACT.check(together, alone)
    with planted_fault("another order"):
        EXACT.check(together[::-1], alone)


def test_a_teacher_never_changes_and_needs_no_gradient():
    model = tiny_model()
    teacher = Teacher(model, vocab_limit=VOCAB)
    (batch, *_) = batches()
    list(scores(teacher.model, [batch], SAMPLES))
    teacher.top_k(batch, SAMPLES, K)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_asking_for_more_ids_than_there_are_gives_all():
    (batch, *_) = batches()
    top = Teacher(tiny_model(), vocab_limit=VOCAB).top_k(batch, SAMPLES, 1000)
    assert top.ids_RK.shape[1] == VOCAB
    found_RK = torch.from_numpy(top.log_probs_RK).double()
    FP32_MODEL.check(found_RK.exp().sum(1), torch.ones(len(batch.target_R)))


def test_a_teacher_with_too_few_ids_is_refused():
    with pytest.raises(ConfigError, match="vocabulary of 97 ids and the policy's tokenizer has 98"):
        Teacher(tiny_model(), vocab_limit=98)


def test_candidates_come_with_the_targets_own_log_prob_to_the_bit():
    policy, teacher = tiny_model(), Teacher(tiny_model(seed=3), vocab_limit=VOCAB)
    for batch in batches():
        candidates_RK = teacher.top_k(batch, SAMPLES, K).ids_RK
        target_R, entropy_R, found_RK = score_candidates(policy, batch, SAMPLES, candidates_RK)
        alone = score_micro_batch(policy, batch, SAMPLES)
        EXACT.check([target_R, entropy_R], list(alone))
        FP32_MODEL.check(
            found_RK, expected_log_probs(policy, batch).gather(1, torch.from_numpy(candidates_RK))
        )
        with planted_fault("candidates of the next target"):
            FP32_MODEL.check(found_RK.roll(1, 0), found_RK)


def test_the_gradient_of_candidates_does_not_depend_on_the_micro_batch():
    teacher = Teacher(tiny_model(seed=3), vocab_limit=VOCAB)

    def gradients(max_rows):
        policy = tiny_model()
        for batch in batches(max_rows):
            ids_RK = teacher.top_k(batch, SAMPLES, K).ids_RK
            _, _, found_RK = score_candidates(policy, batch, SAMPLES, ids_RK)
            weight_R = torch.from_numpy(batch.sample_R + batch.position_R) % 7 - 3.0
            (found_RK.double().exp() * weight_R[:, None]).sum().backward()
        return {name: p.grad for name, p in policy.named_parameters()}

    one_by_one, together = gradients(1), gradients(10_000)
    GRADIENT_NORM.check(together, one_by_one)
    with planted_fault("a gradient scaled by 1.01"):
        GRADIENT_NORM.check(
            together | {"norm.weight": together["norm.weight"] * 1.01},
            one_by_one,
        )
