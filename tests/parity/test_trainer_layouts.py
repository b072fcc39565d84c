"""One gradient in every layout: micro-batch size, packing, order, accumulation, prompt sharing, recompute.

The reference knows no layout: each sample alone through the model, a full log_softmax, the loss term by term.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.loss_cases import CASES, check_gradient, samples_for, trainer_of
from helpers.packed_rows import log_probs_alone
from helpers.planted_fault import planted_fault
from helpers.tiny_models import FAMILIES, tiny_model
from helpers.tolerance import EXACT, FP32_MODEL, FP32_MODEL_GRADIENT, GRADIENT
from helpers.train_batches import make_groups, rewarded, standard_scores, train_on

from zerogap.algorithms import Algorithm, ClipLoss, KLConfig
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer
from zerogap.train import forward as forward_module
from zerogap.train import passes as passes_module
from zerogap.train import planning as planning_module
from zerogap.train.forward import PackedAttention

DENOMINATORS = {
    "token": {"denominator": "token"},
    "sample": {"denominator": "sample"},
    "constant": {"denominator": "constant", "constant_denominator": 30},
}
LAYOUTS = {
    "one sample a micro-batch": {"micro_batch_tokens": 1, "share_prompts": False},
    "small micro-batches, shared": {"micro_batch_tokens": 40},
    "small micro-batches, not shared": {"micro_batch_tokens": 40, "share_prompts": False},
    "one micro-batch, not shared": {"micro_batch_tokens": 10_000, "share_prompts": False},
    "recompute": {"micro_batch_tokens": 100, "recompute": True},
}
# One group has no signal: it adds no gradient, but counts in every denominator.
SAMPLES = [s.scored(1.0) if s.group_id == "g1" else s for s in rewarded(make_groups(3, 3, seed=3))]
ADVANTAGES = standard_scores(SAMPLES)


def gradient_of(samples=SAMPLES, *, family="qwen3", algorithm=None, **train):
    """(gradient by name, metrics) of one step; the weights stay as they are."""
    model = tiny_model(family)
    algorithm = algorithm or Algorithm()
    trainer = NativeTrainer(
        model,
        TrainConfig(
            learning_rate=0.0, max_grad_norm=1e9, **{"micro_batch_tokens": 10_000, **train}
        ),
        algorithm,
        total_steps=1,
        reference=tiny_model(family, seed=1) if algorithm.needs_reference else None,
    )
    metrics = train_on(trainer, samples)
    return {name: p.grad for name, p in model.named_parameters()}, metrics


def reference(samples, advantages, *, kind, family="qwen3", kl=0.0) -> tuple[dict, float]:
    """(gradient by name, loss) sample by sample."""
    model, frozen = tiny_model(family), tiny_model(family, seed=1)
    num_tokens, loss = sum(s.num_loss_tokens for s in samples), torch.zeros((), dtype=torch.float64)
    for sample, advantage in zip(samples, advantages, strict=True):
        log_probs = log_probs_alone(model, sample)
        # At the first update the ratio is 1, and its gradient equals the log-prob's.
        terms = -advantage * (log_probs - log_probs.detach()).exp()
        if kl:
            difference = log_probs - log_probs_alone(frozen, sample).detach()
            # Times the importance ratio, which is 1 and has a gradient.
            ratio = (log_probs - log_probs.detach()).exp()
            terms = terms + kl * ratio * ((-difference).exp() - 1 + difference)
        denominator = {
            "token": num_tokens,
            "sample": len(terms) * len(samples),
            "constant": 30 * len(samples),
        }[kind]
        loss = loss + terms.sum() / denominator
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters()}, loss.item()


@functools.cache
def sample_by_sample(kind: str, family: str = "qwen3", kl: float = 0.0) -> tuple[dict, float]:
    return reference(SAMPLES, ADVANTAGES, kind=kind, family=family, kl=kl)


@pytest.mark.parametrize("kind", DENOMINATORS)
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradient_are_those_of_each_sample_alone(family, kind):
    algorithm = Algorithm(loss=ClipLoss(**DENOMINATORS[kind]))
    gradient, metrics = gradient_of(family=family, algorithm=algorithm, micro_batch_tokens=60)
    expected, expected_loss = sample_by_sample(kind, family)
    FP32_MODEL_GRADIENT.check(gradient, expected)
    FP32_MODEL.check(metrics.loss, expected_loss)
    for other in DENOMINATORS.keys() - {kind}:
        with planted_fault(f"denominator {other}"):
            FP32_MODEL_GRADIENT.check(gradient, sample_by_sample(other, family)[0])


@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_the_gradient_is_that_of_the_sampling_temperature(temperature):
    samples = rewarded(make_groups(2, 2, seed=5, temperature=temperature))
    gradient, _ = gradient_of(samples)
    advantages = standard_scores(samples)
    FP32_MODEL_GRADIENT.check(gradient, reference(samples, advantages, kind="token")[0])
    with planted_fault("temperature 1"):
        hot = gradient_of(rewarded(make_groups(2, 2, seed=5, temperature=1.0)))[0]
        FP32_MODEL_GRADIENT.check(hot, gradient)


def test_the_kl_penalty_is_that_of_each_sample_alone():
    algorithm = Algorithm(kl=KLConfig(kind="k3", coefficient=0.3))
    gradient, metrics = gradient_of(algorithm=algorithm, micro_batch_tokens=60)
    expected, expected_loss = sample_by_sample("token", kl=0.3)
    FP32_MODEL_GRADIENT.check(gradient, expected)
    FP32_MODEL.check(metrics.loss, expected_loss)
    with planted_fault("another coefficient"):
        FP32_MODEL_GRADIENT.check(gradient, sample_by_sample("token", kl=0.31)[0])


@pytest.mark.parametrize("kind", DENOMINATORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_layout_changes_neither_gradient_nor_old_log_probs(layout, kind):
    algorithm = Algorithm(loss=ClipLoss(**DENOMINATORS[kind]))
    gradient, metrics = gradient_of(algorithm=algorithm)
    other, other_metrics = gradient_of(algorithm=algorithm, **LAYOUTS[layout])
    # Forward passes do not depend on the layout: bit for bit.
    EXACT.check(list(other_metrics.old_log_probs), list(metrics.old_log_probs))
    GRADIENT.check(other, gradient)


def test_the_order_of_samples_changes_nothing():
    order = np.random.default_rng(0).permutation(len(SAMPLES))
    gradient, metrics = gradient_of()
    other, other_metrics = gradient_of([SAMPLES[i] for i in order], micro_batch_tokens=50)
    EXACT.check(list(other_metrics.old_log_probs), [metrics.old_log_probs[i] for i in order])
    GRADIENT.check(other, gradient)


def test_recompute_gives_the_same_bits():
    EXACT.check(gradient_of(recompute=True)[0], gradient_of(recompute=False)[0])


def test_a_group_without_signal_has_the_gradient_that_computing_it_would_give():
    gradient, metrics = gradient_of()
    assert metrics.num_rows_without_gradient > 0
    tiny = [s.scored(1e-300 * i) if s.group_id == "g1" else s for i, s in enumerate(SAMPLES)]
    learned, learned_metrics = gradient_of(tiny)
    assert learned_metrics.num_rows_without_gradient == 0
    GRADIENT.check(gradient, learned)


@pytest.mark.parametrize("kind", DENOMINATORS)
def test_denominators_of_micro_batches_would_be_noticed(kind):
    algorithm = Algorithm(loss=ClipLoss(**DENOMINATORS[kind]))
    gradient, _ = gradient_of(algorithm=algorithm)

    def alone(group_id):
        return gradient_of([s for s in SAMPLES if s.group_id == group_id], algorithm=algorithm)[0]

    with planted_fault("each micro-batch divides by its own tokens"):
        parts = [alone(group_id) for group_id in ("g0", "g1", "g2")]
        GRADIENT.check({name: sum(part[name] for part in parts) for name in gradient}, gradient)


# ------------------------------------------------------------ several processes


def share_of(plan, leaves):
    """The plan of a process with these leaves: samples of other leaves take no part, nothing else changes."""
    tokens = plan.tokens
    update_B = np.where(np.isin(plan.leaf_B, leaves), tokens.who.update_B, -1)
    return replace(plan, tokens=replace(tokens, who=replace(tokens.who, update_B=update_B)))


def with_local_denominators(share):
    """The fault of a process that chooses its own denominator."""
    is_mine_B = share.tokens.who.is_kept_B
    num_mine = share.tokens.num_loss_tokens_B[is_mine_B].sum()
    return replace(share, denominator_B=np.where(is_mine_B, float(num_mine), np.inf))


def of_processes(case, plan, shares, *, fault=lambda share: share):
    """(loss, gradient) of the first update: each process packs and computes its share, then the gradients are added."""
    found = []
    for leaves in shares:
        process = trainer_of(case, micro_batch_tokens=50)
        part = process.gradient(fault(share_of(plan, leaves)))
        found.append((part.loss, {name: g.double() for name, g in part.tensors.items()}))
    losses, gradients = zip(*found, strict=True)
    return sum(losses), {name: sum(g[name] for g in gradients) for name in gradients[0]}


@functools.cache
def of_one_process(name):
    """(plan, update) of a case."""
    case = CASES[name]
    one = trainer_of(case)
    plan = one.plan(samples_for(case.algorithm))
    return plan, one.gradient(plan)


@pytest.mark.parametrize("shares", [[[0], [1, 2]], [[2], [0], [1]], [[0, 1, 2], []]], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_processes_that_share_a_plan_add_up_to_one(name, shares):
    case = CASES[name]
    plan, whole = of_one_process(name)
    loss, gradient = of_processes(case, plan, shares)
    check_gradient(case, gradient, whole.tensors)
    FP32_MODEL.check(loss, whole.loss)


def test_a_process_whose_answers_nobody_prefers_adds_nothing():
    case = CASES["dpo"]
    samples = [s.scored(0.0) if s.group_id == "g2" else s for s in samples_for(case.algorithm)]
    one = trainer_of(case)
    plan = one.plan(samples)
    whole = one.gradient(plan)
    loss, gradient = of_processes(case, plan, [[0, 1], [2]])
    check_gradient(case, gradient, whole.tensors)
    FP32_MODEL.check(loss, whole.loss)
    assert of_processes(case, plan, [[2]])[0] == 0.0


@pytest.mark.parametrize("name", ["grpo", "sft", "distillation, top_k"])
def test_processes_that_divide_by_their_own_tokens_would_be_noticed(name):
    case = CASES[name]
    plan, whole = of_one_process(name)
    with planted_fault("local denominators"):
        _, gradient = of_processes(case, plan, [[0], [1, 2]], fault=with_local_denominators)
        check_gradient(case, gradient, whole.tensors)


def with_faulty_packing(monkeypatch, fault):
    honest = passes_module.pack

    def faulty(*args, **kwargs):
        batches = honest(*args, **kwargs)
        for batch in batches:
            fault(batch)
        return batches

    monkeypatch.setattr(passes_module, "pack", faulty)


def test_a_row_that_sees_a_sibling_would_be_noticed(monkeypatch):
    gradient, metrics = gradient_of()

    def read_a_siblings_key(batch):
        layout = batch.layout
        layout.write_row_W[layout.write_row_W == batch.num_rows - 1] = 3

    with_faulty_packing(monkeypatch, read_a_siblings_key)
    leaky, leaky_metrics = gradient_of()
    with planted_fault("a row of another sample is read"):
        GRADIENT.check(leaky, gradient)
    with planted_fault("a row of another sample is read"):
        FP32_MODEL.check(list(leaky_metrics.old_log_probs), list(metrics.old_log_probs))


def test_a_sibling_without_gradient_would_be_noticed(monkeypatch):
    gradient, _ = gradient_of()
    honest = planning_module.decide_advantages

    def forgetful(*args):
        found = honest(*args)
        found.column_S[len(SAMPLES[0]) : len(SAMPLES[0]) + len(SAMPLES[1])] = 0.0
        return found

    monkeypatch.setattr(planning_module, "decide_advantages", forgetful)
    with planted_fault("a sibling's gradient is dropped"):
        GRADIENT.check(gradient_of()[0], gradient)


def test_keys_without_gradient_would_be_noticed(monkeypatch):
    gradient, _ = gradient_of()

    class FrozenKeys(PackedAttention):
        def __call__(self, layer, q_TNH, k_TKH, v_TKH):
            return super().__call__(layer, q_TNH, k_TKH.detach(), v_TKH.detach())

    monkeypatch.setattr(forward_module, "PackedAttention", FrozenKeys)
    with planted_fault("the prompt gets no gradient from the rows that read it"):
        GRADIENT.check(gradient_of()[0], gradient)
