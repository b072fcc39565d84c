import pytest
from helpers.tolerance import FLOAT64_SAME_OP

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
