"""However versions are trained, published, cut off and resumed: what is served is whole, and is what its number says."""

import pytest
import torch
from helpers.examples import examples
from helpers.planted_fault import planted_fault
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from zerogap.errors import WeightSyncError
from zerogap.kernels import round_bf16
from zerogap.weights import (
    CopiedWeights,
    Publisher,
    WeightDigest,
    WeightHistory,
    WeightVersions,
    digest_weights,
    named_weights,
    places_of,
    unrounded,
)


class Sink:
    """Holds tensors of its own, and may lose the line after some of them."""

    def __init__(self, model):
        self.held = {name: t.clone().fill_(-1.0) for name, t in named_weights(model).items()}
        self.version: int | None = None
        self.fails_after: int | None = None

    def begin_weight_update(self):
        self.version = None

    def write_weights(self, weights):
        for count, (name, tensor) in enumerate(weights):
            if count == self.fails_after:
                raise OSError("the line is dead")
            self.held[name].copy_(tensor)

    def digest(self):
        return digest_weights(self.held)

    def places(self):
        return places_of(self.held)

    def end_weight_update(self, version):
        self.version = version


class PublishMachine(RuleBasedStateMachine):
    """A version's weights are its number in every element, plus what rounding to bf16 takes away."""

    @initialize(lag=st.integers(0, 3), rounds=st.booleans())
    def build(self, lag, rounds):
        self.lag, self.version = lag, 0
        self.rounding = round_bf16 if rounds else unrounded
        self.model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LayerNorm(3))
        self.train_to(0)
        self.history, self.versions, self.sink = (
            WeightHistory(lag + 1),
            WeightVersions(),
            Sink(self.model),
        )
        self.connect()

    def connect(self):
        source = CopiedWeights(self.model, self.history, lag=self.lag, rounding=self.rounding)
        self.publisher = Publisher(source, self.sink, self.versions)

    @torch.no_grad()
    def train_to(self, version):
        for parameter in self.model.parameters():
            parameter.fill_(value_of(version))

    @rule()
    def publish(self):
        self.sink.fails_after = None
        published = self.publisher.publish(self.version)
        assert published.version_served == self.sink.version == max(0, self.version - self.lag)
        assert published.fingerprint == digest_weights(named_weights(self.model)).hex

    @rule()
    def train_and_publish(self):
        if self.sink.version is not None:
            self.version += 1
            self.train_to(self.version)
        self.publish()

    @rule(count=st.integers(0, 3))
    def lose_the_line(self, count):
        self.sink.fails_after = count
        with pytest.raises(OSError, match="dead"):
            self.publisher.publish(self.version)
        assert self.sink.version is None

    @rule()
    def change_precision(self):
        """As a run does that goes from fast to exact: the version stays what it was."""
        self.rounding = unrounded if self.rounding is round_bf16 else round_bf16
        self.connect()
        self.publish()

    @rule()
    def resume(self):
        """Another process: what the checkpoint had, and an engine without weights."""
        versions = WeightVersions()
        versions.load_state_dict(self.versions.state_dict())
        self.versions, self.sink = versions, Sink(self.model)
        self.connect()

    @invariant()
    def what_is_served_is_whole_and_known(self):
        if getattr(self, "sink", None) is None or self.sink.version is None:
            return
        expected = self.rounding(torch.tensor(value_of(self.sink.version)))
        for name, tensor in self.sink.held.items():
            assert (tensor == expected).all(), name
        trained = torch.tensor(value_of(self.sink.version))
        origin = {name: trained.expand(t.shape) for name, t in self.sink.held.items()}
        assert self.versions.digest_of(self.sink.version) == digest_weights(origin).hex
        oldest = max(0, self.version - self.lag)
        assert self.history.versions == tuple(range(oldest, self.version + 1))


def value_of(version: int) -> float:
    """Not on the bf16 grid, and no two versions' roundings are equal."""
    return 1.0 + version / 16 + 1e-5


TestPublishMachine = PublishMachine.TestCase
TestPublishMachine.settings = settings(
    max_examples=examples(25), stateful_step_count=12, deadline=None
)


class Careless(Sink):
    """Takes a lost line for the end of the weights."""

    def write_weights(self, weights):
        try:
            super().write_weights(weights)
        except OSError:
            pass


def test_the_machine_notices_half_an_update_that_is_served(monkeypatch):
    machine = PublishMachine()
    machine.build(lag=0, rounds=False)
    machine.publish()
    machine.what_is_served_is_whole_and_known()
    machine.sink = Careless(machine.model)
    machine.connect()
    machine.publish()
    machine.train_to(1)
    machine.sink.fails_after = 2
    with pytest.raises(WeightSyncError, match="2 of 4 tensors differ"):
        machine.publisher.publish(1)
    monkeypatch.setattr(WeightDigest, "differences", lambda self, other: ())
    machine.publisher.publish(2)
    machine.version = 2
    with planted_fault("digests are not compared, and half an update is served"):
        machine.what_is_served_is_whole_and_known()
