import math

import numpy as np
import pytest
from helpers.tolerance import EXACT
from helpers.train_batches import VOCAB, make_sample

from zerogap.algorithms import Exclusion
from zerogap.config.loss import GRPOLossConfig, KLConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import DataError, NumericsError
from zerogap.train.plan import plan_step
from zerogap.types import Outcome


def plan(samples, advantages, *, loss=None, **train):
    return plan_step(
        samples, advantages, config=TrainConfig(**train), loss=loss or GRPOLossConfig(), vocab_limit=VOCAB
    )  # fmt: skip


def samples_of(batches):
    return sorted({int(i) for batch in batches for i in batch.sample_R})


def groups(num_groups, group_size=2):
    return [
        make_sample([1, 2 + g], [3, 4, 5], group_id=f"g{g}", index=i)
        for i in range(group_size)
        for g in range(num_groups)
    ]


def test_what_does_not_train_is_left_out_and_counted():
    samples = [
        make_sample([1], [2, 3]),
        make_sample([1], [2], outcome=Outcome.VERIFIER_FAILED),
        make_sample([1], [2], loss_mask=[False]),
        make_sample([1], [2], outcome=Outcome.ABORTED),
    ]
    found = plan(samples, [1.0, math.nan, math.nan, math.nan])
    assert found.excluded == {Exclusion.INVALID_OUTCOME: 2, Exclusion.NO_LOSS_TOKENS: 1}
    assert samples_of(found.updates[0].micro_batches) == [0]
    EXACT.check(found.updates[0].denominator_B, np.array([2.0, np.inf, np.inf, np.inf]))


def test_groups_without_signal_are_watched_and_still_count_in_the_denominator():
    samples = groups(3)
    advantages = [1.0 if s.group_id == "g1" and i < 3 else 0.0 for i, s in enumerate(samples)]
    (update,) = plan(samples, advantages).updates
    assert samples_of(update.learning) == [1, 4]
    assert samples_of(update.watching) == [0, 2, 3, 5]
    EXACT.check(update.denominator_B, np.full(6, 18.0))


def test_with_a_kl_penalty_every_group_learns():
    loss = GRPOLossConfig(kl=KLConfig(kind="k3", coefficient=0.1))
    (update,) = plan(groups(2), [0.0] * 4, loss=loss).updates
    assert update.watching == []
    assert samples_of(update.learning) == [0, 1, 2, 3]


@pytest.mark.parametrize("num_updates", [1, 2, 3, 5, 8])
def test_updates_share_out_whole_groups_evenly(num_updates):
    samples = groups(5)
    updates = plan(samples, [1.0] * 10, updates_per_step=num_updates).updates
    parts = [samples_of(update.micro_batches) for update in updates]
    assert sorted(i for part in parts for i in part) == list(range(10))
    names = [{samples[i].group_id for i in part} for part in parts]
    assert sum(map(len, names)) == 5, "no group is in two updates"
    assert len(updates) == min(num_updates, 5)
    assert max(map(len, names)) - min(map(len, names)) <= 1


def test_each_update_has_its_own_denominator():
    updates = plan(groups(2), [1.0] * 4, updates_per_step=2).updates
    EXACT.check(updates[0].denominator_B, np.array([6.0, np.inf, 6.0, np.inf]))
    EXACT.check(updates[1].denominator_B, np.array([np.inf, 6.0, np.inf, 6.0]))


@pytest.mark.parametrize(
    ("samples", "advantages", "error", "message"),
    [
        ([make_sample([1], [2])], [1.0, 2.0], DataError, "1 samples and 2 advantages"),
        (
            [make_sample([1], [2])],
            [math.nan],
            NumericsError,
            "g0/0 trains, but its advantage is nan",
        ),
        (
            [make_sample([1], [VOCAB])],
            [1.0],
            DataError,
            f"token id {VOCAB} is outside the vocabulary",
        ),
        (
            [make_sample([1], [2], loss_mask=[False])],
            [1.0],
            DataError,
            "none of the 1 samples trains",
        ),
        ([], [], DataError, "none of the 0 samples trains"),
    ],
)
def test_what_cannot_be_trained_is_refused(samples, advantages, error, message):
    with pytest.raises(error, match=message):
        plan(samples, advantages)
