"""Weights that change without a version stop the engine, whoever changes them: exactness cannot be lost in silence."""

import pytest
import torch
from helpers.engine_samples import trainer_of
from helpers.tiny_engine import request, tiny_engine
from helpers.tiny_models import tiny_model
from helpers.train_batches import make_groups, rewarded, train_on

from zerogap.errors import EngineStateError
from zerogap.weights import copy_weights, named_weights


def by_the_trainer(model):
    train_on(trainer_of(model), rewarded(make_groups(2, 2)))


def by_a_torch_optimizer(model):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def of_one_parameter(model):
    with torch.no_grad():
        model.norm.weight[0] += 1


def by_a_copy(model):
    copy_weights(named_weights(tiny_model(seed=9)).items(), named_weights(model))


def by_loading(model):
    model.load_state_dict(tiny_model(seed=9).state_dict())


CHANGES = [by_the_trainer, by_a_torch_optimizer, of_one_parameter, by_a_copy, by_loading]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_change_without_a_version_is_refused_until_there_is_one(change, precision):
    model = tiny_model(precision=precision)
    engine = tiny_engine(model)
    engine.generate([request()])
    change(model)
    for call in (lambda: engine.generate([request()]), lambda: engine.score([1, 2, 3])):
        with pytest.raises(EngineStateError, match=r"after version 0 was set.*set_weight_version\(1\)"):  # fmt: skip
            call()
    engine.set_weight_version(1)
    (output,) = engine.generate([request()])
    assert set(output.weight_version) == {1}


def test_a_change_between_two_steps_is_noticed_before_the_next():
    model = tiny_model()
    engine = tiny_engine(model)
    with pytest.raises(EngineStateError, match="after version 0 was set"):
        engine.generate([request(max_new_tokens=9)], on_progress=lambda _: of_one_parameter(model))
    engine.set_weight_version(1)
    engine.generate([request()])


def test_a_step_without_a_signal_changes_nothing_and_needs_no_version():
    model = tiny_model()
    engine, samples = tiny_engine(model), make_groups(2, 2)
    train_on(trainer_of(model), [sample.scored(0.5) for sample in samples])
    engine.generate([request()])
