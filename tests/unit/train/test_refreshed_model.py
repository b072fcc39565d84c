"""A reference that follows the policy: a plain average in float64, and a trainer that has it in its state."""

import pytest
from helpers.planted_fault import assert_notices
from helpers.resumed import go_on_from
from helpers.tiny_models import randomize, tiny_model, weights_of
from helpers.tolerance import EXACT, FLOAT64_REFERENCE
from helpers.train_batches import make_groups, rewarded, train_on

from zerogap.algorithms import Algorithm, KLConfig, Refresh
from zerogap.config.train import TrainConfig
from zerogap.errors import CheckpointError
from zerogap.train import NativeTrainer
from zerogap.train.refreshed_model import RefreshedModel


def walk(refresh, *, precision="fp32", num_steps=6):
    """(the moved model, float64 weights by name of a plain loop with these policies)."""
    moved = RefreshedModel(tiny_model(precision=precision), refresh, name="reference")
    expected = {n: w.double() for n, w in weights_of(moved.model).items()}
    policy = tiny_model(precision=precision)
    for step in range(1, num_steps + 1):
        randomize(policy, seed=step)
        policy.round_weights_()
        moved.follow(policy, step)
        if step % refresh.every == 0:
            for name, new in weights_of(policy).items():
                expected[name] += refresh.weight * (new.double() - expected[name])
    return moved, expected


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("weight", [0.05, 0.6])
def test_the_average_is_that_of_a_float64_loop(every, weight):
    moved, expected = walk(Refresh(every=every, weight=weight))
    FLOAT64_REFERENCE.check(weights_of(moved.model), expected)
    for what, other in (
        ("the weights are exchanged", Refresh(every=every, weight=1 - weight)),
        ("another step", Refresh(every=every + 1, weight=weight)),
    ):
        _, wrong = walk(other)
        assert_notices(what, lambda wrong=wrong: FLOAT64_REFERENCE.check(weights_of(moved.model), wrong))  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_with_weight_1_it_is_a_copy_of_the_policy(precision):
    moved, _ = walk(Refresh(every=3), precision=precision, num_steps=5)
    policy = tiny_model(precision=precision)
    randomize(policy, seed=3)
    EXACT.check(weights_of(moved.model), weights_of(policy.round_weights_()))


def test_a_bf16_average_moves_by_less_than_bf16_can_hold():
    moved, expected = walk(Refresh(every=1, weight=0.05), precision="bf16")
    rounded = {n: w.float().bfloat16().double() for n, w in expected.items()}
    different = sum((w.double() != rounded[n]).sum() for n, w in weights_of(moved.model).items())
    # Only what lies within fp32's rounding of the middle between two bf16 values may round the other way.
    assert different <= 2
    FLOAT64_REFERENCE.check(moved.state_dict(), expected)

    start, target = tiny_model(precision="bf16"), tiny_model(seed=1, precision="bf16")
    kept = RefreshedModel(start, Refresh(every=1, weight=1e-3), name="reference")
    before = weights_of(start)
    kept.follow(target, 1)
    unmoved = sum((w == before[n]).sum() for n, w in weights_of(start).items())
    assert unmoved > 1000, "the change is too large to show that it would be rounded away"
    for step in range(2, 2001):
        kept.follow(target, step)
    far = max((w - weights_of(target)[n]).abs().max() for n, w in weights_of(start).items())
    assert far < 0.3 * max((w - before[n]).abs().max() for n, w in weights_of(target).items())


def trainer(refresh, **train):
    config = TrainConfig(**{"learning_rate": 1e-2, "micro_batch_tokens": 200, **train})
    kl = KLConfig(kind="k3", coefficient=0.1, refresh=refresh)
    return NativeTrainer(
        tiny_model(), config, Algorithm(kl=kl), total_steps=10, reference=tiny_model()
    )


def steps(given, num_steps, first=0):
    return [
        train_on(given, rewarded(make_groups(2, 3, seed=first + i), seed=first + i))
        for i in range(num_steps)
    ]


def test_a_copy_after_each_step_leaves_no_kl_and_one_that_never_comes_is_frozen():
    moving, never, frozen = trainer(Refresh(every=1)), trainer(Refresh(every=99)), trainer(None)
    kls = [[m.kl_to_reference for m in steps(t, 3)] for t in (moving, never, frozen)]
    assert kls[0] == [0.0] * 3
    assert kls[1] == kls[2]
    assert kls[2][2] > 0
    EXACT.check(weights_of(never.model), weights_of(frozen.model))
    with pytest.raises(AssertionError):
        EXACT.check(weights_of(moving.model), weights_of(frozen.model))


@pytest.mark.parametrize("refresh", [Refresh(every=1, weight=0.3), Refresh(every=2)])
def test_a_resumed_trainer_does_what_an_uninterrupted_one_does(refresh, tmp_path):
    whole, first, second = trainer(refresh), trainer(refresh), trainer(refresh)
    steps(whole, 4)
    steps(first, 3)
    go_on_from(first, second, tmp_path)
    EXACT.check(second.state_dict(), first.state_dict())
    steps(second, 1, first=3)
    EXACT.check(weights_of(second.model), weights_of(whole.model))
    EXACT.check(second.state_dict(), whole.state_dict())


def test_a_state_of_another_recipe_is_refused():
    moving, frozen = trainer(Refresh(every=1)), trainer(None)
    with pytest.raises(CheckpointError, match=r"has a moved reference.*does not move"):
        frozen.load_state_dict(moving.state_dict())
    with pytest.raises(CheckpointError, match=r"has no moved reference.*moves the reference"):
        moving.load_state_dict(frozen.state_dict())
    none = NativeTrainer(tiny_model(), TrainConfig(), Algorithm(), total_steps=10)
    with pytest.raises(CheckpointError, match=r"has a reference .*this recipe has none"):
        none.load_state_dict(moving.state_dict())


def test_a_step_that_fails_while_the_reference_follows_says_so(monkeypatch):
    given = trainer(Refresh(every=1))
    steps(given, 1)
    assert not given.is_inconsistent

    def fails(*_):
        raise MemoryError

    monkeypatch.setattr(RefreshedModel, "follow", fails)
    with pytest.raises(MemoryError):
        steps(given, 1, first=1)
    assert given.is_inconsistent


def test_the_key_needs_a_penalty():
    with pytest.raises(ValueError, match="refresh: without a penalty there is no reference"):
        KLConfig(refresh=Refresh(every=1))
