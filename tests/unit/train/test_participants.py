"""Samples of one rollout: one baseline entry, one advantage; ids that repeat by mistake are refused."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tiny_models import tiny_model
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from helpers.train_batches import make_sample

from zerogap.algorithms import Algorithm
from zerogap.config import TrainConfig
from zerogap.errors import DataError
from zerogap.train import NativeTrainer
from zerogap.train.participants import take_part

REWARDS = (1.0, 0.0, 0.25)
PRESETS = {
    "grpo": Algorithm.preset("grpo"),
    "dr_grpo": Algorithm.preset("dr_grpo", loss={"constant_denominator": 8}),
    "rloo": Algorithm.preset("rloo"),
}


def whole(rewards=REWARDS):
    """Three rollouts of one sample each."""
    return [make_sample([1, 2, 3], [4 + i, 7, 9 + i], index=i).scored(r) for i, r in enumerate(rewards)]  # fmt: skip


def cut(rewards=REWARDS):
    """The same; the first rollout's context was cut twice, so it has three samples."""
    first, *others = whole(rewards)
    later = [replace(make_sample([1, 2, 3 + i], [5, 6 + i]), rollout_id=first.rollout_id).scored(rewards[0]) for i in (1, 2)]  # fmt: skip
    return [first, others[0], later[0], others[1], later[1]]


ROLLOUT = [0, 1, 0, 2, 0]
"""The rollout of each sample of ``cut``."""


def advantages(samples, algorithm, **models):
    trainer = NativeTrainer(tiny_model(), TrainConfig(), algorithm, total_steps=1, **models)
    found = trainer.plan(samples).advantages
    ends = np.cumsum([len(sample) for sample in samples])
    return found.column_S[ends - 1], found.groups


@pytest.mark.parametrize("preset", PRESETS)
def test_a_rollout_of_several_samples_counts_once_in_the_baseline(preset):
    loss = PRESETS[preset]
    found, groups = advantages(cut(), loss)
    expected, same = advantages(whole(), loss)
    EXACT.check(found, expected[ROLLOUT])
    assert (groups.num_groups, groups.num_alone) == (same.num_groups, same.num_alone) == (1, 0)
    # Against a loop over rollouts.
    for i, reward in enumerate(REWARDS):
        others = [r for at, r in enumerate(REWARDS) if at != i]
        own = {
            "dr_grpo": reward - sum(REWARDS) / 3,
            "rloo": reward - sum(others) / 2,
            "grpo": (reward - sum(REWARDS) / 3) / np.std(REWARDS, ddof=1),
        }[preset]
        FLOAT64_SAME_OP.check(expected[i], np.float64(own))
    assert_notices(
        "samples in the baseline",
        lambda: EXACT.check(advantages(as_rollouts(cut()), loss)[0], expected[ROLLOUT]),
    )


def as_rollouts(samples):
    """Every sample a rollout of its own."""
    return [replace(sample, rollout_id=f"g0/{i}") for i, sample in enumerate(samples)]


def test_several_samples_of_the_only_rollout_have_no_baseline():
    samples = [sample for sample, r in zip(cut(), ROLLOUT, strict=True) if r == 0]
    found, groups = advantages(samples, PRESETS["grpo"])
    EXACT.check(found, np.zeros(3))
    assert (groups.num_alone, groups.num_without_signal) == (1, 0)


def test_the_baseline_variant_gives_every_sample_its_rollouts_reward():
    found, _ = advantages(cut(), Algorithm.preset("reinforce_pp", advantage={"baseline": "group"}))
    assert found[0] == found[2] == found[4]
    assert np.isfinite(found).all()


def test_a_penalty_is_that_of_the_whole_rollout():
    kl = {"kind": "k1", "coefficient": 0.1, "place": "reward"}
    loss = Algorithm.preset("dr_grpo", loss={"constant_denominator": 8}, kl=kl)
    found, _ = advantages(cut((0.5, 0.5, 0.5)), loss, reference=tiny_model(seed=1))
    assert found[0] == found[2] == found[4]
    assert len(set(found.tolist())) == 3


@pytest.mark.parametrize("change", [{"group_id": "g1"}, {"reward": 0.75}])
def test_an_id_that_repeats_by_mistake_is_refused(change):
    first, second, _ = whole()
    twice = [first, replace(second, **{"rollout_id": first.rollout_id, "reward": 1.0} | change)]
    with pytest.raises(DataError, match=r"two samples have rollout id 'g0/0', but one is of group .* an id of its own"):  # fmt: skip
        take_part(twice, max_updates=1, vocab_limit=99)


def test_what_takes_no_part_stands_for_no_rollout():
    samples = cut()
    samples[0] = replace(samples[0], loss_mask=np.zeros(len(samples[0]), bool))
    who = take_part(samples, max_updates=1, vocab_limit=99)
    assert who.first_B.tolist() == [0, 1, 2, 3, 2]
    assert who.stands_for_rollout_B.tolist() == [False, True, True, True, False]
