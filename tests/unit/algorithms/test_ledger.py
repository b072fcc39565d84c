import math
from itertools import pairwise

import numpy as np
import pytest
from helpers.planted_fault import assert_notices
from helpers.tolerance import FLOAT64_SAME_OP

from zerogap.algorithms import Attribution, Stages, attribute, choose_samples, ledger_statistics
from zerogap.errors import NumericsError
from zerogap.obs import GAP_SOURCES


def random_stages(length: int = 40, *, seed: int = 0, spread: float = 0.1) -> Stages:
    rng = np.random.default_rng(seed)
    first = -rng.exponential(size=length)
    moves = rng.normal(scale=spread, size=(7, length)).cumsum(0)
    names = ("a0", "a1", "a2", "a3", "a4", "a5", "a4_replayed")
    columns = dict(zip(names, first + moves, strict=True))
    is_attributed = rng.random(length) < 0.7
    for column in columns.values():
        column[~is_attributed] = rng.choice([np.nan, np.inf, 3.0])
    return Stages(**columns, is_attributed=is_attributed)


def flat(statistics) -> dict:
    views = {"total": statistics.total, **statistics.sources}
    return {name: {"raw": vars(one.raw), "open": vars(one.open)} for name, one in views.items()}


def loop(stages: list[Stages], replayed: set[str]) -> dict:
    """Every statistic of every view, token by token."""
    found: dict[tuple[str, str], list[float]] = {}
    for one in stages:
        for at in np.flatnonzero(one.is_attributed):
            heights = [float(column[at]) for column in one.columns]
            steps = [b - a for a, b in pairwise(heights)]
            seen = [0.0 if s in replayed else d for s, d in zip(GAP_SOURCES, steps, strict=True)]
            if "routing" in replayed:
                # The loss has the present weights on the routes of the sampling pass.
                seen[3] = float(one.a4_replayed[at]) - heights[2]
            for source, raw, shown in zip(GAP_SOURCES, steps, seen, strict=True):
                found.setdefault((source, "raw"), []).append(raw)
                found.setdefault((source, "open"), []).append(shown)
            found.setdefault(("total", "raw"), []).append(heights[-1] - heights[0])
            found.setdefault(("total", "open"), []).append(sum(seen))
    return {
        name: {
            view: {
                "num_tokens": len(gaps := found[name, view]),
                "mean": sum(map(abs, gaps)) / len(gaps),
                "max": max(map(abs, gaps)),
                "signed_mean": sum(gaps) / len(gaps),
                "k3": sum(math.exp(d) - 1 - d for d in gaps) / len(gaps),
            }
            for view in ("raw", "open")
        }
        for name in ("total", *GAP_SOURCES)
    }


@pytest.mark.parametrize("replayed", [{"tokens"}, {"tokens", "routing"}, set()])
def test_statistics_are_those_of_a_loop_over_tokens(replayed):
    stages = [random_stages(seed=seed) for seed in range(3)]
    found = flat(ledger_statistics([attribute(r, name="r") for r in stages], replayed=replayed))
    FLOAT64_SAME_OP.check(found, loop(stages, replayed))
    nudged = [random_stages(seed=seed) for seed in range(3)]
    nudged[1].a3[np.flatnonzero(nudged[1].is_attributed)[0]] += 1e-6
    assert_notices(
        "one stage moved by 1e-6", lambda: FLOAT64_SAME_OP.check(found, loop(nudged, replayed))
    )


def test_signed_means_add_up_to_the_raw_total():
    statistics = ledger_statistics([attribute(random_stages(), name="r")])
    parts = sum(statistics.sources[source].raw.signed_mean for source in GAP_SOURCES)
    assert parts == pytest.approx(statistics.total.raw.signed_mean, abs=1e-12)


def test_ids_travel_so_tokens_are_never_open():
    statistics = ledger_statistics([attribute(random_stages(), name="r")])
    assert statistics.sources["tokens"].raw.mean > 0
    assert statistics.sources["tokens"].open.max == 0.0


def test_equal_rungs_are_exactly_zero():
    column = np.array([-1.25, -0.1, -7.0])
    ladder = Stages(
        a0=column,
        a1=column,
        a2=column,
        a3=column,
        a4=column,
        a5=column,
        a4_replayed=column,
        is_attributed=np.ones(3, bool),
    )
    views = flat(ledger_statistics([attribute(ladder, name="r")]))
    assert {number["max"] for views in views.values() for number in views.values()} == {0.0}


def test_one_ulp_of_float32_is_not_zero():
    engine = np.full(1, -1.25, np.float32)
    column, moved = engine.astype(float), np.nextafter(engine, np.float32(0)).astype(float)
    ladder = Stages(
        a0=column,
        a1=column,
        a2=moved,
        a3=moved,
        a4=moved,
        a5=moved,
        a4_replayed=moved,
        is_attributed=np.ones(1, bool),
    )
    assert ledger_statistics([attribute(ladder, name="r")]).sources["numbers"].open.max > 0


def test_with_replayed_routes_the_open_gap_ends_where_the_loss_is():
    """(a2, a3, a4) has no stage with the present weights on replayed routes, so its differences cannot add up to it."""
    stages = random_stages()
    found, kept = attribute(stages, name="r"), stages.is_attributed
    whole = found.open_total({"tokens", "routing"})[kept]
    FLOAT64_SAME_OP.check(whole, (stages.a4_replayed - stages.a0)[kept])
    assert_notices(
        "staleness between the trainer's own routes",
        lambda: FLOAT64_SAME_OP.check(
            whole - found.open("staleness", {"routing"})[kept] + found.differences["staleness"][kept],
            (stages.a4_replayed - stages.a0)[kept],
        ),
    )  # fmt: skip
    FLOAT64_SAME_OP.check(found.open_total({"tokens"})[kept], (stages.a4 - stages.a0)[kept])


@pytest.mark.parametrize(("column", "stage"), [("a3", "a3"), ("a4_replayed", "a4r")])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_rung_that_is_not_finite_names_record_and_rung(bad, column, stage):
    stages = random_stages()
    at = int(np.flatnonzero(stages.is_attributed)[0])
    getattr(stages, column)[at] = bad
    with pytest.raises(
        NumericsError, match=rf"rollout g/1, position {at}: the log-prob at stage {stage} is"
    ):
        attribute(stages, name="rollout g/1")


def test_without_attributed_tokens_there_are_no_statistics():
    nothing = Attribution(
        differences={source: np.full(2, np.nan) for source in GAP_SOURCES},
        staleness_on_routes=np.full(2, np.nan),
        total=np.full(2, np.nan),
        is_attributed=np.zeros(2, bool),
    )
    assert ledger_statistics([nothing]) is None
    assert ledger_statistics([]) is None


GROUPS = ("a", "b", "a", "c", "b", "a")
COUNTS = np.array([10, 0, 30, 20, 0, 40])


def test_records_are_chosen_until_they_hold_the_share():
    for seed in range(20):
        chosen = choose_samples(COUNTS, GROUPS, share=0.5, min_samples=1, seed=(seed,))
        assert chosen == sorted(set(chosen))
        assert COUNTS[chosen].min() > 0
        assert COUNTS[chosen].sum() >= 50
        assert len(chosen) < 4 or COUNTS[chosen].sum() - 40 < 100


@pytest.mark.parametrize(("share", "expected"), [(1.0, 4), (1e-6, 2)])
def test_all_are_chosen_or_the_least_number(share, expected):
    chosen = choose_samples(COUNTS, GROUPS, share=share, min_samples=2, seed=(1,))
    assert len(chosen) == expected


def test_the_seed_decides_who_is_chosen():
    counts, groups = np.full(48, 7), [str(sample // 8) for sample in range(48)]
    first, again, other = (
        choose_samples(counts, groups, share=0.05, min_samples=4, seed=(3, step))
        for step in (1, 1, 2)
    )
    assert first == again != other


def test_siblings_are_chosen_by_twos():
    counts, groups = np.full(48, 7), [str(sample // 8) for sample in range(48)]
    for seed in range(20):
        chosen = choose_samples(counts, groups, share=0.01, min_samples=4, seed=(seed,))
        assert len({groups[sample] for sample in chosen}) <= 2


def test_every_pair_is_as_likely_as_every_other():
    counts, groups = np.full(7, 5), list("aaaabbc")
    drawn = np.zeros(7)
    for seed in range(4_000):
        drawn[choose_samples(counts, groups, share=0.01, min_samples=1, seed=(seed,))] += 1
    # Chance of one sample: it is first of its pair half of the time, always if it is alone; there are 4 pairs.
    expected = 4_000 / 4 * np.array([0.5] * 6 + [1.0])
    assert np.abs(drawn - expected).max() < 5 * np.sqrt(expected.max())


def test_nothing_to_choose_from():
    assert choose_samples(np.zeros(3, np.int64), "aab", share=0.5, min_samples=4, seed=(0,)) == []
