"""Publishing: the engine serves complete weights that equal the source's, or nothing."""

import pytest
from helpers.planted_fault import nudged, planted_fault
from helpers.tiny_engine import prompt, request, tiny_engine
from helpers.tiny_models import randomize, tiny_model
from helpers.tolerance import EXACT

from zerogap.errors import ConfigError, EngineStateError, UnknownWeightVersion, WeightSyncError
from zerogap.kernels import round_bf16
from zerogap.weights import (
    CopiedWeights,
    Publisher,
    SharedWeights,
    WeightHistory,
    WeightVersions,
    digest_weights,
    named_weights,
    places_of,
    unrounded,
    weight_fingerprint,
)


def build(source_of, engine=None):
    """(trainer's model, engine, publisher, versions); by default the engine has a model of its own."""
    model, versions = tiny_model(seed=1), WeightVersions()
    engine = engine or tiny_engine(tiny_model(seed=9))
    return model, engine, Publisher(source_of(model), engine, versions), versions


def shared():
    model, versions = tiny_model(seed=1), WeightVersions()
    engine = tiny_engine(model)
    return model, engine, Publisher(SharedWeights(model), engine, versions), versions


def test_shared_weights_are_a_new_number_and_one_digest():
    model, engine, publisher, versions = shared()
    places = engine.places()
    for version in (0, 1):
        randomize(model, version)
        published = publisher.publish(version)
        assert published.version_served == version
        assert published.is_shared
        assert published.digest.hex == published.fingerprint == weight_fingerprint(model)
        assert versions.digest_of(version) == published.fingerprint
        assert engine.weight_version == version
    assert engine.places() == places == places_of(named_weights(model))


def test_copied_weights_are_the_same_bits_in_another_place():
    model, engine, publisher, versions = build(CopiedWeights)
    published = publisher.publish(0)
    assert not published.is_shared
    assert published.digest == engine.digest() == digest_weights(named_weights(model))
    EXACT.check(engine.score(prompt(20)), tiny_engine(model).score(prompt(20)))
    randomize(model, 7)
    with planted_fault("the trainer goes on, and nothing is published"):
        EXACT.check(engine.score(prompt(20)), tiny_engine(model).score(prompt(20)))
    publisher.publish(1)
    EXACT.check(engine.score(prompt(20)), tiny_engine(model).score(prompt(20)))
    assert versions.digest_of(0) != versions.digest_of(1)


def test_another_precision_is_rounded_on_the_way_and_the_trainer_keeps_its_own():
    held = tiny_model(seed=9)
    model, engine, publisher, versions = build(
        lambda m: CopiedWeights(m, rounding=round_bf16), tiny_engine(held)
    )
    before = weight_fingerprint(model)
    published = publisher.publish(0)
    for name, tensor in named_weights(held).items():
        EXACT.check(tensor, round_bf16(named_weights(model)[name]))
    assert published.fingerprint == before == weight_fingerprint(model)
    assert published.digest == engine.digest()
    assert published.digest.hex != before
    assert versions.digest_of(0) == before


def test_a_version_is_the_same_whatever_precision_it_is_served_in():
    model, versions = tiny_model(seed=1), WeightVersions()
    for rounding in (round_bf16, unrounded, round_bf16):
        engine = tiny_engine(tiny_model(seed=9))
        Publisher(CopiedWeights(model, rounding=rounding), engine, versions).publish(3)
        assert versions.digest_of(3) == weight_fingerprint(model)
    Publisher(SharedWeights(model), tiny_engine(model), versions).publish(3)


@pytest.mark.parametrize("lag", [1, 2])
def test_a_lag_serves_the_weights_of_that_many_versions_before(lag):
    history = WeightHistory(lag + 1)
    model, engine, publisher, versions = build(lambda m: CopiedWeights(m, history, lag=lag))
    digests = {}
    for version in range(6):
        randomize(model, 20 + version)
        digests[version] = weight_fingerprint(model)
        published = publisher.publish(version)
        served = max(0, version - lag)
        assert published.version_served == served
        assert published.fingerprint == digests[version]
        assert published.digest.hex == engine.digest().hex == digests[served]
        (output,) = engine.generate([request()])
        assert output.weight_version[0] == served
        assert versions.digest_of(served) == digests[served]
        assert (version in versions) == (version == served)


@pytest.mark.parametrize(
    ("history", "lag"), [(None, 1), (WeightHistory(1), 1), (WeightHistory(2), -1)]
)
def test_a_lag_needs_a_history_that_reaches_back(history, lag):
    with pytest.raises(ConfigError, match=f"lag = {lag} with a history of"):
        CopiedWeights(tiny_model(), history, lag=lag)


def test_a_resumed_lag_without_its_older_version_is_refused_and_nothing_is_served():
    _, engine, publisher, _ = build(lambda m: CopiedWeights(m, WeightHistory(2), lag=1))
    with pytest.raises(UnknownWeightVersion, match=r"version 7 .* holds 8"):
        publisher.publish(8)
    with pytest.raises(EngineStateError, match="has not ended"):
        engine.generate([request()])


# ------------------------------------------------------------ failures


class FailsHalfway:
    """A sink that stops after some tensors, like a connection that is lost."""

    def __init__(self, engine, num_tensors: int):
        self._engine, self.num_tensors = engine, num_tensors

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def write_weights(self, weights):
        self._engine.write_weights(self._cut(weights))

    def _cut(self, weights):
        for count, pair in enumerate(weights):
            if count == self.num_tensors:
                raise OSError("the line is dead")
            yield pair


@pytest.mark.parametrize("num_tensors", [0, 1, 14])
def test_a_publish_that_fails_half_way_is_never_served_and_the_next_one_heals_it(num_tensors):
    engine = tiny_engine(tiny_model(seed=9))
    sink = FailsHalfway(engine, 99)
    model, _, publisher, versions = build(CopiedWeights, sink)
    publisher.publish(0)
    randomize(model, 5)
    sink.num_tensors = num_tensors
    with pytest.raises(OSError, match="dead"):
        publisher.publish(1)
    assert 1 not in versions
    for call in (lambda: engine.generate([request()]), lambda: engine.score(prompt(9))):
        with pytest.raises(EngineStateError, match="after version 0 has not ended"):
            call()
    sink.num_tensors = 99
    assert publisher.publish(1).digest == digest_weights(named_weights(model))
    EXACT.check(engine.score(prompt(20)), tiny_engine(model).score(prompt(20)))


class Forgets(FailsHalfway):
    """A sink that reports success but did not copy everything."""

    def __init__(self, model, name: str):
        super().__init__(tiny_engine(model), 0)
        self._forgotten = named_weights(model)[name]

    def write_weights(self, weights):
        kept = self._forgotten.clone()
        self._engine.write_weights(weights)
        self._forgotten.copy_(kept)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.1.down.weight", "norm.weight"])
def test_a_sink_that_kept_one_old_tensor_is_caught_by_name(name):
    _, engine, publisher, versions = build(CopiedWeights, Forgets(tiny_model(seed=9), name))
    with pytest.raises(WeightSyncError, match=rf"version 0 .* 1 of 15 tensors differ \({name}\)"):
        publisher.publish(0)
    assert 0 not in versions
    assert engine.is_updating


class Elsewhere(Forgets):
    """A sink in another process: it shares no memory and sends back only a digest."""

    def places(self):
        return {}


class Trusting(Elsewhere):
    """Digests what it was sent instead of what it reads."""

    def write_weights(self, weights):
        received = {name: tensor.clone() for name, tensor in weights}
        self.digest = lambda: digest_weights(received)
        super().write_weights(received.items())


def test_a_sink_that_shares_nothing_is_checked_by_its_digest_of_what_it_reads():
    name = "layers.0.qkv.weight"
    _, engine, publisher, _ = build(CopiedWeights, Elsewhere(tiny_model(seed=9), name))
    with pytest.raises(WeightSyncError, match=rf"1 of 15 tensors differ \({name}\)"):
        publisher.publish(0)
    assert engine.is_updating
    model, engine, publisher, _ = build(CopiedWeights, Trusting(tiny_model(seed=9), name))
    with planted_fault("what was received is digested, and an old tensor is served"):
        publisher.publish(0)
        EXACT.check(engine.score(prompt(20)), tiny_engine(model).score(prompt(20)))


def test_other_weights_under_a_known_number_are_not_served():
    model, engine, publisher, _ = shared()
    publisher.publish(3)
    model.norm.weight.data[:] = nudged(model.norm.weight)
    with pytest.raises(WeightSyncError, match="version 3 was published with digest"):
        publisher.publish(3)
    assert engine.is_updating
    publisher.publish(4)
    assert not engine.is_updating


def test_a_source_that_shares_refuses_an_engine_that_does_not():
    _, engine, publisher, _ = build(SharedWeights)
    with pytest.raises(
        WeightSyncError, match=r"published as shared, but .* and 10 more of the eng"
    ):
        publisher.publish(0)
    assert engine.is_updating


def test_a_source_that_copies_refuses_to_write_into_the_trainers_model():
    model = tiny_model(seed=1)
    before = weight_fingerprint(model)
    source = CopiedWeights(model, rounding=round_bf16)
    with pytest.raises(WeightSyncError, match="trainer's own storage, which would be overwritten"):
        Publisher(source, tiny_engine(model), WeightVersions()).publish(0)
    assert weight_fingerprint(model) == before


def test_an_engine_is_a_sink_also_while_its_memory_is_released():
    model, engine, publisher, _ = build(CopiedWeights)
    publisher.publish(0)
    engine.generate([request()])
    engine.release_memory_occupation()
    randomize(model, 4)
    publisher.publish(1)
    engine.resume_memory_occupation()
    EXACT.check(engine.score(prompt(20)), tiny_engine(model).score(prompt(20)))
