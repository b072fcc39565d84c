"""Which engine samples, with whose weights."""

import threading

import pytest
import torch
from helpers.generated import generated
from helpers.recipes import run_config

from zerogap.errors import ConfigError, ModelError
from zerogap.foreign import TransformersGenerator
from zerogap.kernels import round_bf16
from zerogap.run.policy import load_policy
from zerogap.run.serving import build_serving
from zerogap.types import Capability, GenerateRequest, SamplingParams, needed_capabilities
from zerogap.weights import WeightVersions, digest_weights, named_weights, places_of

TINY = {
    "tokenizer": "byte",
    "init": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 1,
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 16,
        "max_positions": 512,
    },
}
REQUEST = GenerateRequest(
    input_ids=(256, 97, 98), sampling_params=SamplingParams(max_new_tokens=6, ignore_eos=True)
)


def serving(*, lag=0, model_dtype="fp32", needed=(), **engine):
    config = run_config(
        model=TINY | {"dtype": model_dtype},
        numerics="fast",
        engine={"kv_cache_tokens": 512} | engine,
    )
    policy = load_policy(config.model, seed=0)
    versions = WeightVersions()
    made = build_serving(policy, config.engine, versions, lag=lag, seed=0, needed=needed)
    return policy, made, versions


@torch.no_grad()
def train(policy) -> None:
    """Other weights."""
    for parameter in policy.model.parameters():
        parameter.mul_(1.25)
    policy.model.round_weights_()


def versions_of(engine) -> set[int]:
    (output,) = generated(engine, [REQUEST])
    return set(output.weight_version.tolist())


def test_by_default_nothing_is_copied():
    policy, made, _ = serving()
    assert not made.is_copy
    assert made.publish(0).is_shared
    assert made.engine.places() == places_of(named_weights(policy.model))


@pytest.mark.parametrize("engine", [{"dtype": "bf16"}, {"backend": "transformers"}])
def test_another_precision_or_program_has_weights_of_its_own_that_follow(engine):
    policy, made, versions = serving(**engine)
    assert made.is_copy
    assert not made.publish(0).is_shared
    before = generated(made.engine, [REQUEST])[0].output_log_probs
    train(policy)
    assert versions_of(made.engine) == {0}
    made.publish(1)
    assert versions_of(made.engine) == {1}
    assert generated(made.engine, [REQUEST])[0].output_log_probs.tolist() != before.tolist()
    assert 0 in versions
    assert 1 in versions


def test_transformers_computes_in_the_precision_that_was_asked_for():
    policy, made, _ = serving(backend="transformers", model_dtype="bf16")
    made.publish(0)
    assert isinstance(made.engine, TransformersGenerator)
    weights = named_weights(policy.model)
    assert made.engine.digest() == digest_weights(weights, rounding=round_bf16)


def test_a_lag_serves_the_weights_of_so_many_versions_ago():
    policy, made, _ = serving(lag=2)
    served = []
    for version in range(5):
        served.append(made.publish(version).version_served)
        assert versions_of(made.engine) == {served[-1]}
        train(policy)
    assert served == [0, 0, 0, 1, 2]
    assert made.history.versions == (2, 3, 4)


def test_evaluation_is_always_of_the_trainers_present_weights():
    policy, made, _ = serving(lag=1)
    made.publish(0)
    train(policy)
    made.publish(1)
    present = digest_weights(named_weights(policy.model))
    assert made.evaluator.digest() == present
    assert made.engine.digest() != present


def test_an_engine_that_lacks_what_a_recipe_needs_is_refused_before_a_thread_starts():
    stops = SamplingParams(stop=("x",), min_new_tokens=2, n=4)
    needed = {Capability.LOG_PROBS, *needed_capabilities(stops)}
    before = set(threading.enumerate())
    # ``caught`` holds the frames of the refusal, and with them an engine that was started there.
    with pytest.raises(ConfigError, match="this recipe needs: min_new_tokens, stop_strings;") as caught:  # fmt: skip
        serving(backend="transformers", needed=needed)
    assert set(threading.enumerate()) <= before, caught


def test_a_copy_that_cannot_be_built_leaves_no_thread(monkeypatch):
    def fails(config, dtype):
        raise ModelError("no such architecture")

    monkeypatch.setattr("zerogap.foreign.transformers_generator.build_model", fails)
    before = set(threading.enumerate())
    with pytest.raises(ModelError) as caught:
        serving(backend="transformers")
    assert set(threading.enumerate()) <= before, caught
