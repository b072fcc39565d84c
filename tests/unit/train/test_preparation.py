"""What is decided before the first update: denominators, and what is computed for which loss."""

import numpy as np
import pytest
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT
from helpers.train_batches import VOCAB, make_sample, rewarded

from zerogap.config.corrections import CorrectionsConfig
from zerogap.config.loss import GRPOLossConfig
from zerogap.config.train import TrainConfig
from zerogap.train.preparation import Preparation


def begin(samples, *, loss=None, **train):
    preparation = Preparation(
        model=tiny_model(),
        reference=None,
        teacher=None,
        critic=None,
        config=TrainConfig(**train),
        loss=loss or GRPOLossConfig(),
        corrections=CorrectionsConfig(),
        vocab_limit=VOCAB,
    )
    step, _ = preparation.begin(samples, step_number=0, exact_version=None, on_progress=None)
    return step


def samples_of(*lengths, num_groups=2):
    return rewarded([
        make_sample([1, 2], range(3, 3 + length), group_id=f"g{i % num_groups}", index=i)
        for i, length in enumerate(lengths)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"denominator": "token"}, [18.0] * 4),
        ({"denominator": "record"}, [4.0 * n for n in (3, 4, 5, 6)]),
        ({"denominator": "group"}, [2.0 * n for n in (8, 10, 8, 10)]),
        ({"denominator": "rollout"}, [4.0 * n for n in (3, 4, 5, 6)]),
        ({"denominator": "constant", "constant_denominator": 30}, [120.0] * 4),
    ],
)
def test_the_denominator_is_that_of_the_whole_train_batch(settings, expected):
    (update,) = begin(samples_of(3, 4, 5, 6), loss=GRPOLossConfig(**settings)).updates
    EXACT.check(update.denominator_B, np.array(expected))


def test_each_update_has_its_own_denominator():
    first, second = begin(samples_of(3, 4, 5, 6), updates_per_step=2).updates
    EXACT.check(first.denominator_B, np.array([8.0, np.inf, 8.0, np.inf]))
    EXACT.check(second.denominator_B, np.array([np.inf, 10.0, np.inf, 10.0]))


def test_without_signal_a_group_is_watched_and_counts_in_the_denominator():
    samples = [s.scored(1.0) if s.group_id == "g1" else s for s in samples_of(3, 4, 5, 6)]
    (update,) = begin(samples).updates
    assert {int(i) for batch in update.watching for i in batch.sample_R} == {1, 3}
    EXACT.check(update.denominator_B, np.full(4, 18.0))
