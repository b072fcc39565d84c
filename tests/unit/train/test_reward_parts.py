"""Advantages see the parts of a reward normalised as the recipe says."""

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from helpers.train_batches import VOCAB, make_sample

from zerogap.algorithms import Algorithm, combined_rewards
from zerogap.config import RewardPart
from zerogap.config.train import TrainConfig
from zerogap.errors import DataError
from zerogap.train import plan_step
from zerogap.types import Outcome

PARTS = {
    "right": RewardPart(normalize="group"),
    "length": RewardPart(weight=-0.01, normalize="group"),
    "tags": RewardPart(weight=0.5),
}
GROUP_IDS = ["g0", "g1"] * 4


def scored_samples():
    """Two groups; the last sample failed. The sum has another part and an amount that a shaping added."""
    rng = np.random.default_rng(0)
    samples = []
    for i, group_id in enumerate(GROUP_IDS):
        sample = make_sample([1, 2], [3, 4], group_id=group_id, index=i)
        parts = {"right": float(i % 3 == 0), "length": float(rng.integers(9)), "tags": rng.random()}
        reward = sum(PARTS[name].weight * value for name, value in parts.items()) - 0.25 * i
        inner = {"right/inner": 9.0, "overlong": -0.25 * i}
        samples.append(sample.scored(reward, parts | inner))
    return [*samples[:-1], samples[-1].failed(Outcome.VERIFIER_FAILED, "timeout")]


def advantages_of(samples, parts):
    plan = plan_step(
        samples,
        lambda phase, is_wanted_B: np.full(sum(map(len, samples)), np.nan, np.float32),
        config=TrainConfig(),
        algorithm=Algorithm.preset("dr_grpo", loss={"constant_denominator": 8}),
        vocab_limit=VOCAB,
        step_number=0,
        exact_version=None,
        reward_parts=parts,
    )
    return plan.advantages.column_S[::4]


def centred(rewards_B):
    """Minus the group's mean over the samples that count."""
    of_group = np.array(GROUP_IDS)
    means = {g: np.nanmean(rewards_B[of_group == g]) for g in set(GROUP_IDS)}
    return rewards_B - np.array([means[g] for g in GROUP_IDS])


def expected(samples, parts):
    everything = dict(parts) | {"overlong": RewardPart()}
    is_valid_B = np.array([s.outcome.is_valid for s in samples])
    columns = {name: np.array([s.reward_parts[name] for s in samples]) for name in everything}
    return centred(
        combined_rewards(
            columns,
            {name: part.weight for name, part in everything.items()},
            {name: part.normalize for name, part in everything.items()},
            GROUP_IDS,
            is_valid_B,
        )
    )


def test_advantages_are_of_normalised_parts_and_shapings_are_added_as_they_are():
    samples = scored_samples()
    found = advantages_of(samples, PARTS)
    FLOAT64_SAME_OP.check(found, expected(samples, PARTS))
    raw = {name: part.model_copy(update={"normalize": "none"}) for name, part in PARTS.items()}
    assert_notices("raw parts", lambda: FLOAT64_SAME_OP.check(found, expected(samples, raw)))


def test_without_a_normalised_part_advantages_are_those_of_the_reward():
    samples = scored_samples()
    raw = {name: RewardPart(weight=part.weight) for name, part in PARTS.items()}
    EXACT.check(advantages_of(samples, raw), advantages_of(samples, {}))


def test_a_sample_without_a_part_is_refused_by_name():
    samples = scored_samples()
    samples[2] = samples[2].scored(1.0, {"right": 1.0})
    with pytest.raises(DataError, match=r"rollout g0/2: its reward has no part 'length'"):
        advantages_of(samples, {name: PARTS[name] for name in ("right", "length")})
