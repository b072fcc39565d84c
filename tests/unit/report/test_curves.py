import math

from zerogap.report.curves import draw_chart
from zerogap.report.plot import BOTTOM, TOP, Series
from zerogap.report.scales import ZERO_BAND, ZeroLogScale


def chart(*series, **options):
    return draw_chart("Title", "Caption", series, **options)


def test_nothing_measured_is_no_chart():
    assert chart(Series("a", 1, [])) is None


def test_a_line_breaks_where_a_step_was_not_measured():
    drawn = chart(Series("a", 1, [(1, 0.1), (2, 0.2), (5, 0.5), (6, 0.4)]))
    assert [shape.kind for shape in drawn.shapes] == ["path", "path"]


def test_a_lonely_step_is_a_dot():
    drawn = chart(Series("a", 1, [(1, 0.1), (3, 0.5), (4, 0.4)]))
    assert sorted(shape.kind for shape in drawn.shapes) == ["dot", "path"]


def test_evaluations_are_joined_across_the_steps_between_them():
    drawn = chart(Series("held-out", 2, [(0, 0.1), (10, 0.5)], "points"))
    assert [shape.kind for shape in drawn.shapes] == ["path", "dot", "dot"]


def test_bars_stand_on_each_other():
    drawn = chart(Series("a", 1, [(1, 2.0)], "stack"), Series("b", 2, [(1, 3.0)], "stack"))
    sum_alone = chart(Series("sum", 1, [(1, 5.0)], "stack"))
    lower, upper = (row["y"] for row in drawn.hover["rows"])
    assert upper == sum_alone.hover["rows"][0]["y"]
    assert BOTTOM > lower[0] > upper[0] > TOP


def test_a_bar_stands_on_the_axis_where_the_part_below_it_was_not_measured():
    drawn = chart(
        Series("a", 1, [(1, 2.0)], "stack"), Series("b", 2, [(1, 2.0), (2, 2.0)], "stack")
    )
    (low, _), (first, second) = (row["y"] for row in drawn.hover["rows"])
    assert second == low > first


def test_exact_zeros_lie_in_the_band_and_the_smallest_gap_above_it():
    drawn = chart(
        Series("gap", 1, [(1, 0.0), (2, 1e-30)]),
        scale=ZeroLogScale.around([0.0, 1e-30]),
        zero_band=ZERO_BAND,
    )
    zero, tiny = drawn.hover["rows"][0]["y"]
    assert zero > drawn.zero_band_top >= tiny


def test_an_infinite_value_lies_on_the_edge():
    drawn = chart(Series("a", 1, [(1, math.inf), (2, 1.0)]))
    assert drawn.hover["rows"][0]["y"][0] == TOP
    assert drawn.hover["rows"][0]["text"][0] == "inf"


def test_hovering_finds_every_step_and_says_what_was_not_measured():
    drawn = chart(Series("a", 1, [(1, 0.5), (2, 0.25)]), Series("b", 2, [(2, 4.0)]))
    assert drawn.hover["steps"] == [1, 2]
    assert [row["text"] for row in drawn.hover["rows"]] == [["0.500", "0.250"], [None, "4"]]
    assert len(drawn.hover["x"]) == 2
