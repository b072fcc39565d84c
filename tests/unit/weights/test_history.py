import pytest
import torch
from helpers.planted_fault import planted_fault
from helpers.tiny_models import randomize, tiny_model
from helpers.tolerance import EXACT
from hypothesis import given
from hypothesis import strategies as st

from zerogap.errors import ConfigError, UnknownWeightVersion, WeightSyncError
from zerogap.weights import WeightHistory, named_weights


def small(value: float = 0.0) -> torch.nn.Module:
    model = torch.nn.Linear(3, 2)
    fill(model, value)
    return model


@torch.no_grad()
def fill(model, value):
    for parameter in model.parameters():
        parameter.fill_(value)


def test_a_version_comes_back_bit_for_bit_after_training_went_on():
    model, history = tiny_model(seed=1), WeightHistory(2)
    kept = {name: tensor.clone() for name, tensor in named_weights(model).items()}
    history.remember(0, model)
    randomize(model, 2)
    with planted_fault("the history holds the storage, not a copy"):
        EXACT.check(named_weights(model), kept)
    EXACT.check(history.weights(0), kept)
    history.load_into(0, model)
    EXACT.check(named_weights(model), kept)


def test_loading_keeps_every_address():
    model, history = tiny_model(seed=1), WeightHistory(1)
    history.remember(0, model)
    places = {name: tensor.data_ptr() for name, tensor in named_weights(model).items()}
    randomize(model, 2)
    history.load_into(0, model)
    assert {name: t.data_ptr() for name, t in named_weights(model).items()} == places


@given(capacity=st.integers(1, 4), versions=st.sets(st.integers(0, 30), min_size=1, max_size=10))
def test_the_newest_versions_are_held_and_no_others(capacity, versions):
    history, model = WeightHistory(capacity), small()
    for version in sorted(versions):
        fill(model, version)
        history.remember(version, model)
    held = sorted(versions)[-capacity:]
    assert history.versions == tuple(held)
    for version in held:
        history.load_into(version, model)
        assert {float(t.unique()) for t in named_weights(model).values()} == {float(version)}
    for version in versions - set(held):
        with pytest.raises(UnknownWeightVersion, match=rf"version {version} .*holds {held[0]}"):
            history.weights(version)


def test_an_evicted_version_leaves_the_model_alone():
    history, model = WeightHistory(1), small(1.0)
    for version in (1, 2):
        fill(model, version)
        history.remember(version, model)
    with pytest.raises(UnknownWeightVersion, match=r"version 1 .* holds 2 \(the last 1\)"):
        history.load_into(1, model)
    assert float(named_weights(model)["weight"][0, 0]) == 2.0


def test_a_version_may_be_remembered_again_but_never_with_other_values():
    history, model = WeightHistory(2), small(1.0)
    history.remember(3, model)
    history.remember(3, model)
    model.bias.data[1] += 1e-6
    with pytest.raises(WeightSyncError, match=r"version 3 is remembered already, .* bias"):
        history.remember(3, model)


def test_versions_only_grow():
    history, model = WeightHistory(2), small()
    history.remember(3, model)
    with pytest.raises(WeightSyncError, match=r"version 2 .* after version 3"):
        history.remember(2, model)


def test_another_model_is_refused_by_name():
    history = WeightHistory(2)
    history.remember(0, small())
    other = torch.nn.Linear(3, 2, bias=False)
    with pytest.raises(WeightSyncError, match="bias differ"):
        history.remember(1, other)
    assert history.versions == (0,)
    with pytest.raises(WeightSyncError, match="bias has no place"):
        history.load_into(0, other)


def test_a_history_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="of 0 versions"):
        WeightHistory(0)
    with pytest.raises(UnknownWeightVersion, match="holds none"):
        WeightHistory(1).weights(0)
