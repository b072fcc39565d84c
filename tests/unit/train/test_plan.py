import numpy as np
import pytest
from helpers.tolerance import EXACT
from helpers.train_batches import VOCAB, make_sample

from zerogap.config.train import TrainConfig
from zerogap.errors import DataError
from zerogap.train.participants import take_part
from zerogap.train.plan import plan_update
from zerogap.types import Exclusion, Outcome


def take(samples, max_updates=1):
    return take_part(samples, max_updates=max_updates, vocab_limit=VOCAB)


def plan(samples, has_signal, *, max_updates=1, number=0):
    who = take(samples, max_updates)
    return plan_update(
        samples,
        who.update_B == number,
        np.array(has_signal),
        config=TrainConfig(),
        denominator_B=np.ones(len(samples)),
    )


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
    who = take(samples)
    assert who.excluded == {Exclusion.INVALID_OUTCOME: 2, Exclusion.NO_LOSS_TOKENS: 1}
    EXACT.check(who.update_B, np.array([0, -1, -1, -1]))
    found = plan(samples, [True] * 4)
    assert samples_of(found.micro_batches) == [0]


def test_groups_without_signal_are_watched():
    samples = groups(3)
    update = plan(samples, [s.group_id == "g1" and i < 3 for i, s in enumerate(samples)])
    assert samples_of(update.learning) == [1, 4]
    assert samples_of(update.watching) == [0, 2, 3, 5]
    assert update.is_member_B.all()


@pytest.mark.parametrize("num_updates", [1, 2, 3, 5, 8])
def test_updates_share_out_whole_groups_evenly(num_updates):
    samples = groups(5)
    who = take(samples, num_updates)
    assert (who.update_B >= 0).all()
    names = [{s.group_id for s, u in zip(samples, who.update_B, strict=True) if u == number}
             for number in range(who.num_updates)]  # fmt: skip
    assert sum(map(len, names)) == 5, "no group is in two updates"
    assert who.num_updates == min(num_updates, 5)
    assert max(map(len, names)) - min(map(len, names)) <= 1


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([make_sample([1], [VOCAB])], f"token id {VOCAB} is outside the vocabulary"),
        ([make_sample([1], [2], loss_mask=[False])], "none of the 1 samples trains"),
        ([], "none of the 0 samples trains"),
    ],
)
def test_what_cannot_be_trained_is_refused(samples, message):
    with pytest.raises(DataError, match=message):
        take(samples)
