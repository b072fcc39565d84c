"""Whatever is appended to a record, cut off it, saved and loaded: every column is what a plain list of tokens says.

Letters: L layers, k choices.
"""

import itertools
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from helpers.planted_fault import assert_notices
from helpers.same_samples import assert_same
from helpers.samples import completed_sample, ragged
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from zerogap.rollout import load_rollouts, save_rollouts
from zerogap.types import (
    FinishReason,
    GenerateOutput,
    Outcome,
    Ragged,
    Sample,
    Source,
    Turn,
)

VOCAB = 50
NUM_EXPERTS = {np.uint8: 256, np.uint16: 300}
ids = st.lists(st.integers(0, VOCAB - 1), max_size=6)
randomness = st.integers(0, 2**32 - 1)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A row of every column, in plain values."""

    token_id: int
    source: Source
    log_prob: float = np.nan
    kept_log_mass: float = 0.0
    version: int = -1
    kept: tuple[int, ...] = ()
    route: tuple[int, ...] = ()
    """L * k experts, in order; empty: 0 everywhere."""
    turn: Turn | None = None
    """Its place is of no meaning; siblings of a turn have the same object."""


@dataclass
class Model:
    """A record as a list."""

    tokens: list[Token] = field(default_factory=list)
    has_kept: bool = False
    text: str = ""

    def turns(self) -> tuple[Turn, ...]:
        places = itertools.groupby(range(len(self.tokens)), key=lambda at: id(self.tokens[at].turn))
        spans = [list(group) for _, group in places]
        return tuple(
            replace(turn, start=span[0], end=span[-1] + 1)
            for span in spans
            if (turn := self.tokens[span[0]].turn) is not None
        )


class RecordMachine(RuleBasedStateMachine):
    """One record, and its model."""

    @initialize(prompt=ids, routes=st.sampled_from([None, np.uint8, np.uint16]), L=st.integers(1, 3), k=st.integers(1, 2))  # fmt: skip
    def begin(self, prompt, routes, L, k):
        self.routes, self.L, self.k = routes, L, k
        self.model = Model([Token(token_id=i, source=Source.PROMPT) for i in prompt])
        self.sample = Sample.of_prompt(prompt, group_id="g", rollout_id="g/0", temperature=0.7)

    @rule(num_new=st.integers(1, 6), reason=st.sampled_from(["stop", "length"]), truncates=st.booleans(), seed=randomness)  # fmt: skip
    def turn(self, num_new, reason, truncates, seed):
        """A turn of several versions; its routes of earlier tokens are others than those that drew them."""
        rng = np.random.default_rng(seed)
        finish = FinishReason(reason, matched=int(rng.integers(9)))
        turn = Turn(start=0, end=0, finish_reason=finish, seed=seed)
        drawn = [self.drawn_token(rng, turn, truncates=truncates) for _ in range(num_new)]
        before, tokens = len(self.model.tokens), [*self.model.tokens, *drawn]
        given = [self.a_route(rng) for _ in tokens[:-1]]
        sampled = [at for at, token in enumerate(self.model.tokens) if token.version >= 0]
        known = sampled[-1] if sampled else 0
        for at in range(known, len(tokens) - 1):
            tokens[at] = replace(tokens[at], route=given[at])
        self.sample = self.sample.append_output(
            GenerateOutput(
                rid="r",
                index=5,
                prompt_ids=np.array([t.token_id for t in self.model.tokens], np.int32),
                output_ids=np.array([t.token_id for t in drawn], np.int32),
                output_log_probs=np.array([t.log_prob for t in drawn], np.float32),
                kept_log_mass=np.array([t.kept_log_mass for t in drawn], np.float32),
                finish_reason=finish,
                weight_version=np.array([t.version for t in drawn], np.int32),
                seed=seed,
                text=f"<{seed}>",
                kept_sets=ragged([t.kept for t in drawn]) if truncates else None,
                routes=self.as_array(given),
            )
        )
        self.model = Model(tokens, self.model.has_kept or truncates, self.model.text + f"<{seed}>")
        assert self.sample.outcome == (Outcome.TRUNCATED if reason == "length" else Outcome.COMPLETED)  # fmt: skip
        runs = [
            (v, len(list(run))) for v, run in itertools.groupby(t.version for t in tokens[before:])
        ]
        spans = self.sample.version_spans(self.sample.turns[-1])
        assert [(span.version, span.end - span.start) for span in spans] == runs
        assert [span.start for span in spans] == [0, *(span.end for span in spans[:-1])]

    @rule(reply=ids)
    def reply(self, reply):
        self.sample = self.sample.append(reply, source=Source.ENVIRONMENT)
        self.model.tokens += [Token(token_id=i, source=Source.ENVIRONMENT) for i in reply]

    @precondition(lambda self: self.routes is None)
    @rule(num_new=st.integers(0, 4), seed=randomness)
    def columns(self, num_new, seed):
        """Some columns by hand, the others filled."""
        rng = np.random.default_rng(seed)
        new = [replace(self.drawn_token(rng, None, truncates=False), version=3) for _ in range(num_new)]  # fmt: skip
        self.sample = self.sample.append(
            [t.token_id for t in new],
            source=Source.POLICY,
            loss_mask=True,
            rollout_log_probs=[t.log_prob for t in new],
            weight_version=3,
        )
        self.model.tokens += new

    @rule(start=st.integers(0, 30), num=st.integers(0, 30))
    def slice(self, start, num):
        self.sample = self.sample.slice(start, start + num)
        self.model.tokens = self.model.tokens[start : start + num]

    @rule(length=st.integers(0, 30))
    def truncate(self, length):
        self.sample = self.sample.truncate(length)
        self.model.tokens = self.model.tokens[:length]

    @rule(place=st.integers(0, 2))
    def save_and_load(self, place):
        """Among records with other optional columns than its own."""
        saved = [completed_sample(), replace(self.sample, kept_sets=None, routes=None)]
        saved.insert(place, self.sample)
        with tempfile.TemporaryDirectory() as folder:
            save_rollouts(Path(folder) / "s", saved)
            loaded = load_rollouts(Path(folder) / "s")
        for ours, theirs in zip(loaded, saved, strict=True):
            assert_same(ours, theirs)
        self.sample = loaded[place]

    @invariant()
    def agrees(self):
        sample, tokens = self.sample, self.model.tokens
        assert sample.token_ids.tolist() == [t.token_id for t in tokens]
        assert sample.source.tolist() == [t.source for t in tokens]
        assert sample.loss_mask.tolist() == [t.version >= 0 for t in tokens]
        log_probs = np.array([t.log_prob for t in tokens], np.float32)
        np.testing.assert_array_equal(sample.rollout_log_probs, log_probs)
        assert sample.kept_log_mass.tolist() == [t.kept_log_mass for t in tokens]
        assert sample.weight_version.tolist() == [t.version for t in tokens]
        assert (sample.kept_sets is not None) == self.model.has_kept
        if (kept := sample.kept_sets) is not None:
            rows = [kept[at : at + 1].values.tolist() for at in range(len(kept))]
            assert rows == [list(t.kept) for t in tokens]
        if sample.routes is not None:
            assert sample.routes.dtype == self.routes
            expected = self.as_array([t.route for t in tokens])
            np.testing.assert_array_equal(sample.routes, expected)
        assert sample.turns == self.model.turns()
        assert sample.text == self.model.text
        assert sample.num_completion_tokens == sum(t.source == Source.POLICY for t in tokens)
        assert sample.num_loss_tokens == sum(t.version >= 0 for t in tokens)

    def drawn_token(self, rng, turn, *, truncates):
        token_id = int(rng.integers(VOCAB))
        kept = {token_id, *rng.integers(0, VOCAB, rng.integers(0, 4)).tolist()}
        return Token(
            token_id=token_id,
            source=Source.POLICY,
            log_prob=float(np.float32(-rng.random() - 0.1)),
            kept_log_mass=float(np.float32(-rng.random())) if truncates else 0.0,
            version=int(rng.integers(0, 3)),
            kept=tuple(sorted(kept)) if truncates else (),
            turn=turn,
        )

    def a_route(self, rng):
        if self.routes is None:
            return ()
        return tuple(rng.integers(0, NUM_EXPERTS[self.routes], self.L * self.k).tolist())

    def as_array(self, routes):
        if self.routes is None:
            return None
        filled = [route or (0,) * (self.L * self.k) for route in routes]
        return np.array(filled, self.routes).reshape(-1, self.L, self.k)


RecordMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
TestRecord = RecordMachine.TestCase


def a_life(seed=0):
    """Two turns of several versions with a reply between them, cut, saved and loaded."""
    machine = RecordMachine()
    machine.begin([1, 2, 3], np.uint8, 2, 2)
    for operation in (
        lambda: machine.turn(5, "stop", True, seed),
        lambda: machine.reply([7, 8]),
        lambda: machine.turn(4, "length", True, seed + 1),
        lambda: machine.slice(4, 30),
        lambda: machine.save_and_load(1),
        lambda: machine.truncate(6),
    ):
        operation()
        machine.agrees()


def test_a_life_with_a_fault_in_it_is_noticed(monkeypatch):
    a_life()
    faults = {
        "later routes replace those of the sampling pass": (Sample, "_routes_with", lambda sample, output: np.concatenate([output.routes, output.routes[:1] * 0])),
        "offsets that do not begin at 0 again": (Ragged, "__getitem__", lambda lists, rows: Ragged(lists.values, lists.offsets[rows.start : rows.stop + 1])),
        "one version a turn": (Sample, "append_output", lambda sample, output, append=Sample.append_output: append(sample, replace(output, weight_version=output.weight_version[-1:].repeat(len(output.output_ids))))),
    }  # fmt: skip
    for what, fault in faults.items():
        with monkeypatch.context() as planted:
            planted.setattr(*fault)
            assert_notices(what, lambda: or_refuses(a_life))


def or_refuses(life):
    """A record that refuses to be made has noticed, too."""
    try:
        life()
    except Exception as error:
        raise AssertionError(str(error)) from error
