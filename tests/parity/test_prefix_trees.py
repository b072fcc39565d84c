"""Samples that share prefixes as a tree: log-probs have the bits, and the gradient the value, of no sharing."""

import numpy as np
import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tiny_models import FAMILIES, tiny_model
from helpers.tolerance import EXACT, GRADIENT_NORM
from helpers.train_batches import make_sample, make_trees, rewarded, train_on

from zerogap.algorithms import Algorithm, ClipLoss, KLConfig, ReturnAdvantage
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer
from zerogap.train import forward as forward_module
from zerogap.train import passes as passes_module

ROOMY = 10_000


def trained(samples, *, rewards=None, family="qwen3", algorithm=None, **config):
    """(gradient by name, metrics) of one step whose weights stay as they are."""
    model, algorithm = tiny_model(family), algorithm or Algorithm()
    trainer = NativeTrainer(
        model,
        TrainConfig(learning_rate=0.0, max_grad_norm=1e9, **{"micro_batch_tokens": ROOMY, **config}),
        algorithm,
        total_steps=1,
        reference=tiny_model(family, seed=1) if algorithm.needs_reference else None,
    )  # fmt: skip
    metrics = train_on(trainer, rewarded(samples, rewards, seed=len(samples)))
    return {name: p.grad for name, p in model.named_parameters()}, metrics


def check_equal(samples, **config):
    """With and without sharing."""
    gradient, metrics = trained(samples, **config)
    plain, plain_metrics = trained(samples, **{**config, "share_prompts": False})
    EXACT.check(list(metrics.old_log_probs), list(plain_metrics.old_log_probs))
    GRADIENT_NORM.check(gradient, plain)
    return metrics


@pytest.mark.parametrize("seed", range(25))
def test_random_trees_change_no_log_prob_and_no_gradient(seed):
    samples = make_trees(seed=seed, longest=(20, 60, 120)[seed % 3])
    metrics = check_equal(samples, family=FAMILIES[seed % len(FAMILIES)])
    assert metrics.num_rows_saved > 0
    assert metrics.num_rows_repeated == 0


@pytest.mark.parametrize("max_rows", [1, 30, 70, 100])
def test_trees_that_are_cut_are_the_same(max_rows):
    metrics = check_equal(make_trees(3, 6, seed=7), micro_batch_tokens=max_rows)
    assert metrics.num_rows_repeated > 0


def test_trees_with_a_penalty_on_the_kl_are_the_same():
    algorithm = Algorithm(
        loss=ClipLoss(denominator="sample"), kl=KLConfig(kind="k3", coefficient=0.2)
    )
    check_equal(make_trees(seed=3), algorithm=algorithm, recompute=True)


def test_samples_that_are_equal_but_for_their_advantage_are_the_same():
    # Advantages of a group sum to 0, and so would these four gradients without a fifth, different sample.
    samples = [make_sample([1, 2, 3], range(20, 60), index=i) for i in range(4)]
    metrics = check_equal([*samples, make_sample([1, 2, 3], [9], index=4)])
    assert metrics.num_rows == 42
    assert metrics.num_rows_saved == 3 * 42 + 3


def test_temperatures_that_differ_within_a_group_are_kept_apart():
    samples = [
        make_sample([1, 2, 3], range(20, 40), index=i, temperature=t)
        for i, t in enumerate((1.0, 0.5, 1.0))
    ]
    # Equal samples with advantages that sum to 0 would cancel.
    returns = Algorithm(advantage=ReturnAdvantage(std="none"))
    metrics = check_equal(samples, algorithm=returns, rewards=[1.0, 2.0, 0.5])
    first, other, again = metrics.old_log_probs
    EXACT.check(again, first)
    with planted_fault("a sibling's temperature"):
        EXACT.check(other, first)


def with_faulty_packing(monkeypatch, fault):
    honest = passes_module.pack

    def faulty(*args, share_prompts, **kwargs):
        batches = honest(*args, share_prompts=share_prompts, **kwargs)
        for batch in batches if share_prompts else []:
            fault(batch)
        return batches

    monkeypatch.setattr(passes_module, "pack", faulty)


def test_a_branch_that_reads_another_branchs_key_would_be_noticed(monkeypatch):
    def leak(batch):
        layout, last = batch.layout, batch.num_rows - 1
        layout.write_row_W[layout.write_row_W == last] = last - 20

    with_faulty_packing(monkeypatch, leak)
    with planted_fault("a key of another branch"):
        check_equal(make_trees(seed=1))


def test_a_target_with_its_siblings_weight_would_be_noticed(monkeypatch):
    samples = [make_sample([1, 2, 3], range(20, 60), index=i) for i in range(2)]
    samples.append(make_sample([1, 2, 3], [9], index=2))

    def mix_up(batch):
        batch.sample_R[:] = np.where(batch.position_R == 5, 0, batch.sample_R)

    with_faulty_packing(monkeypatch, mix_up)
    with planted_fault("one advantage for two siblings' targets"):
        GRADIENT_NORM.check(trained(samples)[0], trained(samples, share_prompts=False)[0])


def test_targets_that_are_scored_once_but_weighed_once_would_be_noticed(monkeypatch):
    honest = forward_module.log_probs

    def forgetful(hidden, weight, target, *args, **kwargs):
        values, entropy = honest(hidden, weight, target, *args, **kwargs)
        values.register_hook(lambda grad: grad * (torch.arange(len(grad)) != 3))
        return values, entropy

    samples = make_trees(seed=2)
    plain = trained(samples, share_prompts=False)[0]
    GRADIENT_NORM.check(trained(samples)[0], plain)
    monkeypatch.setattr(forward_module, "log_probs", forgetful)
    with planted_fault("one answer's gradient is dropped"):
        GRADIENT_NORM.check(trained(samples)[0], plain)
