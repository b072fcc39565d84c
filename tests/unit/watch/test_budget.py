"""The controller in simulated runs: gaps that remedies close, hide, or close only in part."""

import itertools
import json
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerogap.config import MismatchConfig
from zerogap.obs import WEIGHED_SOURCES
from zerogap.watch.budget import ORDER, BudgetController, Decision


@dataclass
class Run:
    """A loop whose parts of the gap follow its settings; satisfies ``Remedies``."""

    numbers: float = 0.0
    sampling: float = 0.0
    tokens: float = 0.0
    staleness_a_step: float = 0.0
    lag: int = 0
    is_exact: bool = False
    is_corrected: bool = False

    def open_means(self) -> dict[str, float]:
        """Before corrections: ``is_corrected`` is not in here."""
        return {
            "numbers": 0.0 if self.is_exact else self.numbers,
            "sampling": self.sampling,
            "staleness": self.staleness_a_step * self.lag,
            "tokens": self.tokens,
            "routing": 0.0,
        }

    def why_not(self, remedy):
        reasons = {
            "corrections": "already on" if self.is_corrected else None,
            "staleness": None if self.lag else "rollout.lag is 0",
            "numerics": "already exact" if self.is_exact else None,
        }
        return reasons[remedy]

    def switch_on_corrections(self):
        self.is_corrected = True

    def reduce_lag(self):
        self.lag -= 1

    def exact_numerics(self):
        self.is_exact = True


def controller(**changes) -> BudgetController:
    return BudgetController(MismatchConfig(**{"budget": 0.01, "patience": 2} | changes))


def observe(control, step, total, means, run):
    return control.observe(step, total, means, run, num_tokens=1200, num_samples=4)


def drive(run: Run, control: BudgetController, num_steps: int, start: int = 1) -> list[Decision]:
    """Decisions of a run that applies them and stops when none is left."""
    decisions = []
    for step in range(start, start + num_steps):
        means = run.open_means()
        decision = observe(control, step, sum(means.values()), means, run)
        if decision is None:
            continue
        decisions.append(decision)
        if decision.is_stop:
            break
        decision.apply(run)
    return decisions


def taken(decisions):
    return [(d.step, d.remedy) for d in decisions]


def test_a_gap_that_its_remedies_can_close_is_closed():
    run = Run(staleness_a_step=0.02, lag=3, numbers=0.015)
    decisions = drive(run, controller(), 100)
    assert taken(decisions) == [
        (2, "corrections"),
        (4, "staleness"),
        (6, "staleness"),
        (8, "staleness"),
        (10, "numerics"),
    ]
    assert sum(run.open_means().values()) == 0.0
    assert decisions[1].passed_over == (("corrections", "already on"),)


def test_a_source_that_opens_late_still_has_its_remedy():
    """Samples of the first steps are not old yet, whatever the lag."""
    control, run = controller(patience=1), Run(numbers=0.5, lag=0)
    early = drive(run, control, 2)
    run.lag, run.staleness_a_step = 2, 0.1
    late = drive(run, control, 9, start=3)
    assert taken(early) == [(1, "corrections"), (2, "numerics")]
    assert taken(late) == [(3, "staleness"), (4, "staleness")]


def test_the_end_says_of_every_remedy_why_it_is_none():
    run = Run(numbers=0.5, lag=0)
    *_, last = drive(run, controller(patience=1, remedies=["corrections"]), 9)
    assert str(last.error()) == (
        "step 2: gap/total/mean = 0.5 nats over 1,200 tokens of 4 samples has been above mismatch.budget = 0.01 for 1 audited step, and no remedy is left in "
        "mismatch.remedies (corrections: already on; staleness: the gap from "
        "staleness is 0.0; numerics: mismatch.remedies does not allow it). The largest source is numbers "
        "(0.5 nats): close it (see docs/numerics.md), or set a higher mismatch.budget"
    )


def test_it_stops_when_the_gap_is_small_enough_though_not_closed():
    run = Run(staleness_a_step=0.004, lag=4)
    assert taken(drive(run, controller(remedies=["staleness"]), 100)) == [(2, "staleness"), (4, "staleness")]  # fmt: skip
    assert run.lag == 2


def test_a_gap_that_corrections_only_hide_ends_the_run_and_names_its_source():
    run = Run(numbers=0.05)
    decisions = drive(run, controller(remedies=["corrections"]), 100)
    assert taken(decisions) == [(2, "corrections"), (4, None)]
    assert run.is_corrected
    assert "measured before corrections, so it does not shrink" in decisions[0].lines()[-1]
    assert "The largest source is numbers (0.05 nats)" in str(decisions[-1].error())


def test_a_controller_that_saw_the_corrected_gap_would_hide_it():
    """Planted fault: with a gap measured after corrections, the run never stops."""
    only = {"remedies": ["corrections"]}
    run = Run(numbers=0.05)
    honest = run.open_means
    run.open_means = lambda: {k: v * (not run.is_corrected) for k, v in honest().items()}
    assert not any(d.is_stop for d in drive(run, controller(**only), 100))
    run = Run(numbers=0.05)
    assert any(d.is_stop for d in drive(run, controller(**only), 100))


def test_corrections_are_no_remedy_for_truncated_sampling():
    """Every importance weight is 1: both log-probs are over the whole vocabulary."""
    run = Run(sampling=0.084)
    (only,) = drive(run, controller(patience=1), 9)
    assert (only.remedy, run.is_corrected) == (None, False)
    assert str(only.error()) == (
        "step 1: gap/total/mean = 0.084 nats over 1,200 tokens of 4 samples has been above mismatch.budget = 0.01 for 1 audited step, and no remedy is left in "
        "mismatch.remedies (corrections: the gap from numbers, routing and staleness is 0.0, and importance weights contain no "
        "other source; staleness: the gap from staleness is 0.0; numerics: the gap from numbers is 0.0). The largest source is "
        "sampling (0.084 nats): set rollout.sampling.top_p = 1, top_k = -1 and min_p = 0 (no remedy closes it, and importance "
        "weights do not contain it), or set a higher mismatch.budget"
    )


@pytest.mark.parametrize("source", ["numbers", "staleness"])
def test_corrections_are_for_what_the_weights_contain(source):
    gap = {"staleness_a_step": 0.05, "lag": 1} if source == "staleness" else {source: 0.05}
    first, *_ = drive(Run(sampling=0.2, **gap), controller(), 9)
    assert (first.remedy, first.remedy_for, first.source) == ("corrections", source, "sampling")


@pytest.mark.parametrize(
    ("gap", "remedy"), [("sampling", None), ("tokens", None), ("numbers", "numerics")]
)
def test_no_remedy_is_spent_on_a_source_that_it_does_not_close(gap, remedy):
    run = Run(lag=2, **{gap: 0.05})
    first, *_ = drive(run, controller(remedies=["staleness", "numerics"]), 3)
    assert (first.remedy, run.lag, run.is_exact) == (remedy, 2, remedy is not None)


def test_what_cannot_apply_is_skipped_with_its_reason():
    run = Run(numbers=0.5, sampling=0.1, staleness_a_step=0.1, is_exact=False)
    (first, *_) = drive(run, controller(remedies=["staleness", "numerics"]), 3)
    assert first.remedy == "numerics"
    assert dict(first.passed_over) == {
        "corrections": "mismatch.remedies does not allow it",
        "staleness": "the gap from staleness is 0.0",
    }
    assert all(f"skipped: {why}" in "\n".join(first.lines()) for _, why in first.passed_over)
    assert json.loads(json.dumps(first.to_json()))["event"] == "remedy"


def test_without_a_budget_nothing_is_ever_done():
    assert drive(Run(tokens=5.0), BudgetController(MismatchConfig()), 50) == []


def test_a_step_within_the_budget_starts_the_count_again():
    control, run = controller(patience=3), Run()
    totals = [0.02, 0.02, 0.01, 0.02, 0.02, 0.01]
    assert [observe(control, i, t, {"tokens": t}, run) for i, t in enumerate(totals)] == [None] * 6


_RUNS = st.builds(
    Run,
    numbers=st.sampled_from([0.0, 0.005, 0.02]),
    sampling=st.sampled_from([0.0, 0.02]),
    tokens=st.sampled_from([0.0, 0.0, 0.02]),
    staleness_a_step=st.sampled_from([0.0, 0.004, 0.03]),
    lag=st.integers(0, 4),
    is_exact=st.booleans(),
)
_REMEDIES = st.lists(st.sampled_from(ORDER), unique=True)


@given(_RUNS, _REMEDIES, st.integers(1, 4))
def test_order_patience_and_an_end(run, allowed, patience):
    lag = run.lag
    decisions = drive(run, controller(remedies=allowed, patience=patience), 200)
    steps = [0, *(d.step for d in decisions)]
    assert all(later - earlier >= patience for earlier, later in itertools.pairwise(steps))
    kinds = [d.remedy for d in decisions if d.remedy is not None]
    assert kinds == sorted(kinds, key=ORDER.index)
    assert all(d.remedy_for in WEIGHED_SOURCES for d in decisions if not d.is_stop)
    assert set(kinds) <= set(allowed)
    assert all(kinds.count(kind) <= 1 for kind in ("corrections", "numerics"))
    assert kinds.count("staleness") == lag - run.lag
    is_above = sum(run.open_means().values()) > 0.01
    assert is_above == bool(decisions and decisions[-1].is_stop)


@given(_RUNS, st.integers(0, 30))
def test_resumed_is_uninterrupted(run, cut):
    duplicate_of = replace(run)
    whole = drive(run, controller(), 40)
    before, later = controller(), controller()
    first = drive(duplicate_of, before, cut)
    if first and first[-1].is_stop:
        return
    later.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert first + drive(duplicate_of, later, 40 - cut, start=cut + 1) == whole
