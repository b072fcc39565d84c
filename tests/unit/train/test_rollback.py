"""A step that cost the engine's policy too much is undone: weights, moments, critic and moved models are the former bits."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.loss_cases import hinted
from helpers.resumed import go_on_from
from helpers.tiny_models import tiny_model, weights_of
from helpers.tolerance import EXACT
from helpers.train_batches import VOCAB, make_groups, rewarded, train_on

from zerogap.algorithms import Algorithm
from zerogap.config.train import TrainConfig
from zerogap.errors import DataError
from zerogap.train import NativeTrainer, Teacher

TAUGHT = {"teacher": {"hint": {"kind": "answer"}, "refresh": {"every": 1, "weight": 0.5}}}
MOVING = {"kl": {"kind": "k3", "coefficient": 0.1, "refresh": {"every": 1, "weight": 0.5}}}
CASES = {
    "grpo": {},
    "bf16": {},
    "moving reference": MOVING,
    "moving teacher": TAUGHT,
    "critic": {"loss": {"kind": "clip"}, "advantage": {"kind": "critic"}},
}


def build(name="grpo", *, tolerance=0.0):
    algorithm = Algorithm.model_validate({"acceptance": {"tolerance": tolerance}} | CASES[name])
    precision = "bf16" if name == "bf16" else "fp32"
    model = tiny_model(precision=precision)
    return NativeTrainer(
        model,
        TrainConfig(learning_rate=1e-2, micro_batch_tokens=200),
        algorithm,
        total_steps=10,
        reference=model.copied(precision=precision) if algorithm.needs_reference else None,
        teacher=Teacher(tiny_model(), vocab_limit=VOCAB) if algorithm.loads_teacher else None,
    )


def state_of(trainer):
    """All that training changes, except the copy before the last step."""
    state = {n: t.clone() for n, t in trainer.state_dict().items() if not n.startswith("before.")}
    del state["num_steps"], state["torch_rng_state"]
    return weights_of(trainer.model) | state


def drawn(trainer, seed, *, worse=0.0):
    """Samples of an engine whose log-probs are the trainer's, less ``worse`` nats a token on good samples and more on bad ones."""
    samples = hinted(rewarded(make_groups(2, 4, seed=seed), [1.0, 0.0] * 4))
    scored = trainer.score(samples)
    return [
        replace(s, rollout_log_probs=np.minimum(x - (worse if s.reward else -worse), 0.0).astype(np.float32))
        for s, x in zip(samples, scored, strict=True)
    ]  # fmt: skip


def do(trainer, samples):
    """A step; whether it undid the one before."""
    plan = trainer.plan(samples)
    if plan.undoes:
        trainer.undo(plan)
    else:
        trainer.step(plan)
    return plan.undoes


@pytest.mark.parametrize("name", CASES)
def test_an_undone_step_leaves_the_former_bits(name):
    trainer = build(name)
    do(trainer, drawn(trainer, 0))
    before = state_of(trainer)
    do(trainer, drawn(trainer, 1))
    with pytest.raises(AssertionError):
        EXACT.check(state_of(trainer), before)
    plan = trainer.plan(drawn(trainer, 2, worse=0.1))
    assert plan.undoes
    assert plan.acceptance.inference_gain < 0
    trainer.undo(plan)
    EXACT.check(state_of(trainer), before)
    assert not trainer.is_inconsistent


def test_the_run_goes_on_as_if_the_step_had_not_been_except_for_its_number():
    trainer, other = build(), build()
    do(trainer, drawn(trainer, 0))
    do(trainer, drawn(trainer, 1))
    assert do(trainer, drawn(trainer, 2, worse=0.1))
    do(other, drawn(other, 0))
    EXACT.check(weights_of(trainer.model), weights_of(other.model))
    # Both draw the same from here; nothing is held, so even samples like those undo nothing.
    samples = drawn(other, 3, worse=0.1)
    assert trainer.plan(samples).acceptance is None
    assert (do(trainer, samples), do(other, drawn(other, 3))) == (False, False)


def test_samples_without_a_gap_or_with_one_in_favour_undo_nothing():
    trainer = build()
    do(trainer, drawn(trainer, 0))
    found = [trainer.plan(drawn(trainer, 1, worse=worse)).acceptance for worse in (0.0, -0.1, 0.1)]
    assert [one.is_accepted for one in found] == [True, True, False]
    assert found[0].inference_gain == 0.0
    lenient = build(tolerance=10.0)
    do(lenient, drawn(lenient, 0))
    assert not lenient.plan(drawn(lenient, 1, worse=0.1)).undoes


def test_the_first_step_has_nothing_to_undo():
    trainer = build()
    assert trainer.plan(drawn(trainer, 0, worse=0.1)).acceptance is None


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_before", [1, 2, 3])
def test_a_resumed_trainer_undoes_what_an_uninterrupted_one_does(name, num_before, tmp_path):
    def third(trainer):
        return do(trainer, drawn(trainer, 2, worse=0.1))

    steps = [lambda t: do(t, drawn(t, 0)), lambda t: do(t, drawn(t, 1)), third, lambda t: do(t, drawn(t, 3))]  # fmt: skip
    whole, first, second = build(name), build(name), build(name)
    assert [step(whole) for step in steps] == [False, False, True, False]
    for step in steps[:num_before]:
        step(first)
    go_on_from(first, second, tmp_path)
    EXACT.check(second.state_dict(), first.state_dict())
    for step in steps[num_before:]:
        step(second)
    EXACT.check(state_of(second), state_of(whole))
    EXACT.check(second.state_dict(), whole.state_dict())


def test_a_plan_is_for_one_of_the_two():
    trainer = build()
    plan = trainer.plan(drawn(trainer, 0))
    with pytest.raises(DataError, match=r"plan of step 1 trains.*give it to step\(\)"):
        trainer.undo(plan)
    trainer.step(plan)
    refused = trainer.plan(drawn(trainer, 1, worse=0.1))
    with pytest.raises(DataError, match=r"step 2 undoes the step before.*give it to undo\(\)"):
        trainer.step(refused)
    trainer.undo(refused)


def test_without_the_table_nothing_is_kept():
    trainer = NativeTrainer(tiny_model(), TrainConfig(), Algorithm(), total_steps=2)
    train_on(trainer, drawn(trainer, 0))
    assert not [name for name in trainer.state_dict() if name.startswith("before.")]
