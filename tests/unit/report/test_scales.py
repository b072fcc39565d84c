import numpy as np
import pytest
from helpers.planted_fault import planted_fault
from helpers.tolerance import FLOAT64_SAME_OP
from hypothesis import given
from hypothesis import strategies as st

from zerogap.report.scales import (
    ZERO_BAND,
    LinearScale,
    ZeroLogScale,
    integer_ticks,
    nice_step,
)

FINITE = st.floats(-1e9, 1e9, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-9)


def test_a_value_outside_its_scale_would_be_noticed():
    places = np.array([LinearScale(0.0, 1.0, 0.5).place(1.01)])
    with planted_fault("a value above the scale's end"):
        FLOAT64_SAME_OP.check(places, np.clip(places, 0, 1))


@given(st.lists(FINITE, min_size=1, max_size=20))
def test_a_linear_scale_holds_its_values_and_ends_in_ticks(values):
    scale = LinearScale.around(values)
    places = np.array([scale.place(value) for value in values])
    FLOAT64_SAME_OP.check(places, np.clip(places, 0, 1))
    ticks = scale.ticks()
    assert (ticks[0].at, ticks[-1].at) == (0, 1)
    assert len({tick.label for tick in ticks}) == len(ticks) <= 12


def test_a_linear_scale_starts_at_zero_unless_the_curve_would_be_flat():
    assert LinearScale.around([0.2, 0.9]).low == 0
    assert LinearScale.around([0.8, 0.9]).low > 0.7
    assert LinearScale.around([0.8]).low == 0


def test_noise_is_not_blown_up_to_a_trend():
    scale = LinearScale.around([5.5394, 5.5398])
    assert scale.high - scale.low >= 0.5


def test_tick_labels_are_no_longer_than_their_step():
    assert [t.label for t in LinearScale(0.0, 1.0, 0.25).ticks()] == [
        "0.00",
        "0.25",
        "0.50",
        "0.75",
        "1.00",
    ]
    assert [t.label for t in LinearScale(-2000.0, 2000.0, 2000.0).ticks()] == [
        "-2,000",
        "0",
        "2,000",
    ]


@pytest.mark.parametrize("smallest", [1e-30, 1e-9, float(np.finfo(np.float32).smallest_subnormal)])
def test_exact_zero_has_a_band_that_no_other_value_enters(smallest):
    scale = ZeroLogScale.around([0.0, smallest, 0.5])
    assert scale.place(0.0) < ZERO_BAND <= scale.place(smallest) < scale.place(0.5) <= 1


def test_decades_are_equally_far_apart_and_the_lowest_tick_is_zero():
    scale = ZeroLogScale.around([])
    assert scale.ticks()[0].label == "exactly 0"
    places = [tick.at for tick in scale.ticks()[1:]]
    even = np.linspace(places[0], places[-1], len(places))
    FLOAT64_SAME_OP.check(np.array(places), even)
    with planted_fault("one decade is wider"):
        FLOAT64_SAME_OP.check(np.array([places[0], places[1] + 0.001, *places[2:]]), even)


def test_infinity_does_not_stretch_a_scale():
    assert ZeroLogScale.around([np.inf]) == ZeroLogScale.around([])
    assert LinearScale.around([np.inf, 1.0]) == LinearScale.around([1.0])


def test_steps_are_round():
    assert [nice_step(x) for x in (0.3, 1.0, 1.1, 2.2, 7.0)] == [0.5, 1.0, 2.0, 2.5, 10.0]


@pytest.mark.parametrize(
    ("first", "last", "ticks"),
    [
        (1, 1, [1]),
        (0, 2, [0, 1, 2]),
        (0, 60, [0, 10, 20, 30, 40, 50, 60]),
        (1, 12, [2, 4, 6, 8, 10, 12]),
    ],
)
def test_step_ticks_are_whole_numbers(first, last, ticks):
    assert integer_ticks(first, last) == ticks


@pytest.mark.parametrize(
    "values",
    [[1e-300, 6e-300], [5e-324, 0.0], [-1.7e308, 1.7e308], [1e308], [1e-12, 2e-12], [1e20, 1.1e20]],
)
def test_a_linear_axis_holds_any_finite_numbers_with_short_labels(values):
    scale = LinearScale.around(values)
    assert all(-1e-9 <= scale.place(value) <= 1 + 1e-9 for value in values)
    labels = [tick.label for tick in scale.ticks()]
    assert len(labels) >= 2
    assert all(len(label) <= 10 for label in labels)
