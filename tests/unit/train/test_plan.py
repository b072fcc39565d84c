"""A plan is decided from samples and scores alone: participants, leaves, denominators, which samples have a gradient."""

import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.loss_cases import CASES, samples_for, trainer_of
from helpers.planted_fault import assert_notices
from helpers.tolerance import EXACT, FLOAT64_SAME_OP
from helpers.train_batches import VOCAB, make_groups, make_sample, rewarded

from zerogap.algorithms import Algorithm, ClipLoss, DPOLoss, KLConfig
from zerogap.config.train import TrainConfig
from zerogap.errors import DataError
from zerogap.train import plan_step
from zerogap.train.participants import take_part
from zerogap.train.tokens import TokenIndex
from zerogap.types import Exclusion, Outcome


class Scores:
    """Scores every wanted token with -1; counts the samples of each phase."""

    def __init__(self, samples):
        self.samples, self.asked = samples, Counter()

    def __call__(self, phase, is_wanted_B):
        self.asked[phase] += int(is_wanted_B.sum())
        pairs = zip(self.samples, is_wanted_B, strict=True)
        return np.concatenate(
            [
                np.where(s.loss_mask & is_in, np.float32(-1), np.float32(np.nan))
                for s, is_in in pairs
            ]
        )


def plan(samples, *, algorithm=None, score=None, step_number=0, exact_version=None, **train):
    return plan_step(
        samples,
        score or Scores(samples),
        config=TrainConfig(**train),
        algorithm=algorithm or Algorithm(),
        vocab_limit=VOCAB,
        step_number=step_number,
        exact_version=exact_version,
    )


def samples_of(*lengths, num_groups=2):
    return rewarded([
        make_sample([1, 2], range(3, 3 + length), group_id=f"g{i % num_groups}", index=i)
        for i, length in enumerate(lengths)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"denominator": "token"}, [18.0] * 4),
        ({"denominator": "sample"}, [4.0 * n for n in (3, 4, 5, 6)]),
        ({"denominator": "group"}, [2.0 * n for n in (8, 10, 8, 10)]),
        ({"denominator": "rollout"}, [4.0 * n for n in (3, 4, 5, 6)]),
        ({"denominator": "constant", "constant_denominator": 30}, [120.0] * 4),
    ],
)
def test_the_denominator_is_that_of_the_whole_train_batch(settings, expected):
    found = plan(samples_of(3, 4, 5, 6), algorithm=Algorithm(loss=ClipLoss(**settings)))
    EXACT.check(found.denominator_B, np.array(expected))


def test_each_update_has_its_own_denominator_and_who_takes_no_part_has_none():
    failed = make_sample([1], [2], outcome=Outcome.VERIFIER_FAILED)
    found = plan([*samples_of(3, 4, 5, 6), failed], updates_per_step=2)
    EXACT.check(found.denominator_B, np.array([8.0, 10.0, 8.0, 10.0, np.inf]))


def test_a_preference_divides_by_the_pairs_of_its_update():
    samples = [s.scored(float(i >= 2)) for i, s in enumerate(samples_of(3, 4, 5, 6, 7, 8))]
    found = plan(samples, algorithm=Algorithm(loss=DPOLoss()), updates_per_step=2)
    EXACT.check(found.pairs_P2, np.array([[2, 0], [4, 0], [3, 1], [5, 1]]))
    EXACT.check(found.denominator_B, np.full(6, 2.0))


def test_a_leaf_is_a_group_and_learns_if_one_of_it_has_a_signal():
    samples = [s.scored(1.0) if s.group_id == "g1" else s for s in samples_of(3, 4, 5, 6)]
    found = plan(samples)
    EXACT.check(found.leaf_B, np.array([0, 1, 0, 1]))
    EXACT.check(found.learns_B, np.array([True, False, True, False]))
    EXACT.check(found.denominator_B, np.full(4, 18.0))
    penalised = Algorithm(kl=KLConfig(kind="k3", coefficient=0.1))
    assert plan(samples, algorithm=penalised).learns_B.all()


class ScoresOfAReference(Scores):
    """The reference is less sure of every later sample."""

    def __call__(self, phase, is_wanted_B):
        found_S = super().__call__(phase, is_wanted_B)
        if phase != "reference":
            return found_S
        lengths = [len(s) for s in self.samples]
        return found_S - np.repeat(np.arange(len(lengths), dtype=np.float32) ** 2 / 8, lengths)


@pytest.mark.parametrize("kind", ["group", "leave_one_out"])
@pytest.mark.parametrize("std", ["group", "batch", "batch_advantage", "none"])
def test_a_kl_in_the_reward_of_a_solved_group_keeps_its_coefficient(std, kind):
    """The divisor is that of the raw rewards, and 1 where these are equal: KL noise is not scaled up to a signal."""
    samples = [s.scored(1.0) for s in samples_of(3, 4, 5, 6, 7, 8)]

    def found(coefficient):
        kl = {"kind": "k1", "coefficient": coefficient, "place": "reward"}
        algorithm = Algorithm.model_validate({"kl": kl, "advantage": {"kind": kind, "std": std}})
        return plan(samples, algorithm=algorithm, score=ScoresOfAReference(samples)).advantages

    # k1 of sample i is i^2 / 8 a token, and it has i + 3 of them.
    penalties = [i**2 / 8 * (i + 3) for i in range(6)]
    scale = 1.5 if kind == "leave_one_out" else 1.0
    means = [sum(penalties[i % 2 :: 2]) / 3 for i in range(6)]
    for coefficient in (1e-2, 1e-4, 1e-6):
        advantages = found(coefficient)
        first_S = np.cumsum([len(s) for s in samples]) - 1
        by_hand = [-coefficient * (p - m) * scale for p, m in zip(penalties, means, strict=True)]
        FLOAT64_SAME_OP.check(advantages.column_S[first_S], np.array(by_hand))
        assert advantages.groups.num_without_signal == 2
    weak, strong = (found(c).column_S[first_S] for c in (1e-6, 1e-2))
    assert_notices("a coefficient that cancels", lambda: FLOAT64_SAME_OP.check(weak, strong))


def test_a_kl_in_the_reward_is_no_part_of_a_divisor():
    samples = samples_of(3, 4, 5, 6)
    kl = {"kind": "k1", "coefficient": 0.1, "place": "reward"}
    algorithm = Algorithm.model_validate({"kl": kl})
    found = plan(samples, algorithm=algorithm, score=ScoresOfAReference(samples)).advantages
    last_S = np.cumsum([len(s) for s in samples]) - 1

    def check(includes_penalties):
        for i, sample in enumerate(samples):
            members = range(i % 2, 4, 2)
            raw = [samples[j].reward for j in members]
            net = [samples[j].reward - 0.1 * j**2 / 8 * (j + 3) for j in members]
            divisor = np.std(net if includes_penalties else raw, ddof=1)
            own = sample.reward - 0.1 * i**2 / 8 * (i + 3)
            expected = (own - np.mean(net)) / divisor
            FLOAT64_SAME_OP.check(float(found.column_S[last_S[i]]), float(expected))

    check(includes_penalties=False)
    assert_notices("the penalties' own spread", lambda: check(includes_penalties=True))


def test_nobody_learns_while_a_critic_trains_alone():
    ppo = Algorithm.preset("ppo", advantage={"warmup_steps": 1})
    first, second = (plan(samples_of(3, 4), algorithm=ppo, step_number=n) for n in (0, 1))
    assert (first.trains_policy, first.learns_B.any()) == (False, False)
    assert (second.trains_policy, second.learns_B.all()) == (True, True)


@pytest.mark.parametrize(
    ("exact_version", "asked", "num_taken"), [(None, 16, 0), (0, 8, 8), (1, 16, 0)]
)
def test_a_share_of_the_leaves_is_audited_whatever_becomes_of_their_packing(
    exact_version, asked, num_taken
):
    samples = rewarded(make_groups(5, 4))
    score = Scores(samples)
    found = plan(
        samples, score=score, exact_version=exact_version, updates_per_step=5, audit_share=0.5
    )
    assert score.asked == {"old": asked}
    assert found.old.is_taken_B.sum() == num_taken
    assert {frozenset(found.old.is_taken_B[found.leaf_B == leaf]) for leaf in range(5)} <= {
        frozenset({True}),
        frozenset({False}),
    }


@pytest.mark.parametrize("name", CASES)
def test_a_plan_can_be_sent_and_nobody_overwrites_it(name):
    case = CASES[name]
    one, other = (trainer_of(case, updates_per_step=2, learning_rate=1e-3) for _ in range(2))
    made = one.plan(samples_for(case.algorithm))
    sent = pickle.loads(pickle.dumps(made))
    metrics, of_sent = one.step(made), other.step(sent)
    assert (metrics.loss, metrics.grad_norm) == (of_sent.loss, of_sent.grad_norm)
    EXACT.check(dict(other.model.named_parameters()), dict(one.model.named_parameters()))
    for column in (made.denominator_B, made.advantages.column_S, made.old.old_S):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
    EXACT.check(made.advantages.column_S, sent.advantages.column_S)


def test_a_plan_of_another_step_is_refused():
    trainer, samples = trainer_of(CASES["grpo"]), samples_for(Algorithm())
    made = trainer.plan(samples)
    trainer.step(made)
    with pytest.raises(DataError, match=r"a plan of step 1 .* done 1 steps.* plan the step again"):
        trainer.step(made)


# ------------------------------------------------------------ participants


def take(samples, max_updates=1):
    return take_part(samples, max_updates=max_updates, vocab_limit=VOCAB)


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


def masked(sample, reward=0.0):
    return replace(sample, outcome=Outcome.TRUNCATED).scored(reward).masked()


def test_a_masked_sample_counts_in_its_group_but_does_not_train():
    first, cut, third, fourth = [
        s.scored(r) for s, r in zip(samples_of(3, 4, 5, 6), (1.0, 0.0, 0.5, 1.0), strict=True)
    ]
    # In g1 both others are right; only the masked one is not.
    samples = [first, masked(cut), third, fourth]
    found = plan(samples)
    assert found.tokens.who.excluded == {Exclusion.MASKED: 1}
    EXACT.check(found.tokens.trains_S, np.concatenate([s.loss_mask for s in samples]))
    assert found.learns_B.all()
    assert found.advantages.groups.num_alone == 0
    # (1 - 0.5) / std of (0, 1)
    expected = 0.5 / np.sqrt(0.5)

    def check(advantages_B):
        FLOAT64_SAME_OP.check(
            torch.from_numpy(advantages_B[[1, 3]]), torch.tensor([-expected, expected]).double()
        )

    check(found.advantages.groups.advantages)
    EXACT.check(found.denominator_B, np.array([14.0, np.inf, 14.0, 14.0]))
    failed = plan([first, cut.failed(Outcome.ABORTED, ""), third, fourth])
    assert_notices("it is left out", lambda: check(failed.advantages.groups.advantages))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"denominator": "sample"}, [4.0 * 3, np.inf, 4.0 * 5, 4.0 * 6]),
        ({"denominator": "rollout"}, [4.0 * 3, np.inf, 4.0 * 5, 4.0 * 6]),
        ({"denominator": "group"}, [2.0 * 8, np.inf, 2.0 * 8, 2.0 * 6]),
        ({"denominator": "constant", "constant_denominator": 30}, [120.0, np.inf, 120.0, 120.0]),
    ],
)
def test_a_masked_sample_counts_as_a_sample_in_denominators(settings, expected):
    samples = samples_of(3, 4, 5, 6)
    samples[1] = masked(samples[1])
    found = plan(samples, algorithm=Algorithm(loss=ClipLoss(**settings)))
    EXACT.check(found.denominator_B, np.array(expected))


def test_a_group_that_is_masked_as_a_whole_takes_no_update_from_others():
    samples = groups(4)
    cut = [masked(s) if s.group_id in ("g0", "g1") else s for s in samples]
    who = take(cut, max_updates=4)
    assert who.num_updates == 2
    trains = [s.num_loss_tokens > 0 for s in cut]
    assert {int(u) for u in who.update_B[trains]} == {0, 1}
    assert {s.group_id: int(u) for s, u in zip(cut, who.update_B, strict=True)} == {
        "g0": 0, "g1": 1, "g2": 0, "g3": 1,
    }  # fmt: skip
    with pytest.raises(DataError, match="none of the 8 samples trains"):
        take([masked(s) for s in samples])


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


def test_the_samples_of_one_rollout_have_names_of_their_own():
    first, second, other = make_groups(1, 3)
    index = TokenIndex([first, other, replace(second, rollout_id=first.rollout_id)])
    places = [1, len(first) + 2, len(first) + len(other) + 3]
    assert [index.name(place) for place in places] == [
        f"rollout {first.rollout_id} (sample 1 of 2), position 1",
        f"rollout {other.rollout_id}, position 2",
        f"rollout {first.rollout_id} (sample 2 of 2), position 3",
    ]
