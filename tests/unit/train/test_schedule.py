import pytest
from helpers.planted_fault import assert_notices
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from helpers.train_batches import make_groups, rewarded, train_on

from zerogap.algorithms import Algorithm
from zerogap.config.train import TrainConfig
from zerogap.train import NativeTrainer
from zerogap.train.optimizer import learning_rate_at


def rates(schedule, *, warmup_steps=3, total_steps=11):
    return [
        learning_rate_at(
            step, peak=2.0, schedule=schedule, warmup_steps=warmup_steps, total_steps=total_steps
        )
        for step in range(total_steps)
    ]


@pytest.mark.parametrize(
    ("schedule", "after_warmup"),
    [
        ("constant", [2.0] * 8),
        ("linear", [2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [2.0, 1.923880, 1.707107, 1.382683, 1.0, 0.617317, 0.292893, 0.076120]),
    ],
)
def test_the_rate_climbs_in_equal_parts_and_then_follows_the_schedule(schedule, after_warmup):
    found = rates(schedule)
    FLOAT64_SAME_OP.check(found[:3], [0.5, 1.0, 1.5])
    FLOAT64_SAME_OP.check([round(rate, 6) for rate in found[3:]], after_warmup)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_no_step_of_a_run_is_wasted_on_a_rate_of_zero(schedule):
    assert min(rates(schedule)) > 0
    assert min(rates(schedule, warmup_steps=0)) > 0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_past_the_end_the_rate_is_zero(schedule):
    for step in (11, 12, 50):
        assert (
            learning_rate_at(step, peak=2.0, schedule=schedule, warmup_steps=3, total_steps=11) == 0
        )


def test_a_warmup_longer_than_the_run_only_climbs():
    assert rates("cosine", warmup_steps=20) == sorted(rates("cosine", warmup_steps=20))


def rates_of_a_run(schedule, *, num_alone, total_steps):
    """The policy's learning rate at each step of a trainer whose critic first trains alone."""
    trainer = NativeTrainer(
        tiny_model(),
        TrainConfig(learning_rate=2.0e-4, schedule=schedule, warmup_steps=2),
        Algorithm.preset("ppo", advantage={"warmup_steps": num_alone}),
        total_steps=total_steps,
    )
    samples = rewarded(make_groups(1, 2))
    return [train_on(trainer, samples).learning_rate for _ in range(total_steps)]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_critic_that_trains_alone_does_not_use_up_the_policys_schedule(schedule):
    """The first step that trains the policy has the first rate of a run without the critic's warm-up, the last the last."""
    found = rates_of_a_run(schedule, num_alone=3, total_steps=8)
    EXACT.check(found[3:], rates_of_a_run(schedule, num_alone=0, total_steps=5))
    counts_all = [
        learning_rate_at(step, peak=2.0e-4, schedule=schedule, warmup_steps=2, total_steps=8)
        for step in range(8)
    ]
    assert_notices("all steps count", lambda: EXACT.check(found, counts_all))
    assert found[3] == pytest.approx(2.0e-4 / 3)
    assert min(found) > 0


def test_a_run_that_ends_while_the_critic_trains_alone_has_a_schedule():
    assert rates_of_a_run("cosine", num_alone=5, total_steps=2)[0] > 0
