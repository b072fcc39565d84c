import torch
from helpers.planted_fault import assert_notices
from helpers.tiny_models import tiny_model
from helpers.train_batches import make_groups, train_on

from zerogap.config.loss import CriticConfig, PPOLossConfig
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer

SAMPLES = [sample.scored(k % 3 / 2) for k, sample in enumerate(make_groups(2, 3))]


def step(warmup_steps):
    loss = PPOLossConfig(kind="ppo", critic=CriticConfig(warmup_steps=warmup_steps))
    config = TrainConfig(learning_rate=1e-3, updates_per_step=2)
    trainer = NativeTrainer(tiny_model(), config, loss, total_steps=3)
    return trainer, train_on(trainer, SAMPLES)


def check_policy_is_untouched(trainer, metrics):
    assert metrics.grad_norm == 0.0
    for ours, theirs in zip(trainer.model.parameters(), tiny_model().parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_critic_that_learns_alone_leaves_the_policy_as_it_is():
    trainer, metrics = step(warmup_steps=1)
    check_policy_is_untouched(trainer, metrics)
    assert metrics.critic.is_alone
    assert metrics.critic.loss > 0
    assert train_on(trainer, SAMPLES).grad_norm > 0
    assert_notices("no warm-up", lambda: check_policy_is_untouched(*step(warmup_steps=0)))
