"""Charts over steps as SVG geometry, which the template only draws."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zerogap.report.numbers import format_number
from zerogap.report.plot import Plot, Points, Series, Shape, at_share, stack
from zerogap.report.scales import LinearScale, Scale, integer_ticks


@dataclass(frozen=True)
class Mark:
    """A tick: its position in pixels, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Key:
    """An entry of the legend."""

    label: str
    style: str
    last: str
    """The newest value."""


@dataclass(frozen=True)
class Chart:
    """The content of one figure."""

    title: str
    caption: str
    x_ticks: list[Mark]
    y_ticks: list[Mark]
    rules: list[Mark]
    """Dashed horizontal reference lines."""
    zero_band_top: float | None
    """Top of the band of exact zeros; it ends at the bottom of the plot."""
    shapes: list[Shape]
    keys: list[Key]
    hover: dict[str, object]
    """steps, x [steps], and for each series label, style, y [steps] and text [steps]; null if not measured."""


def draw_chart(
    title: str,
    caption: str,
    series: Sequence[Series],
    *,
    scale: Scale | None = None,
    rules: Iterable[tuple[float, str]] = (),
    zero_band: float | None = None,
) -> Chart | None:
    """Lay out a chart; None if no series has a point.

    Args:
        title: of the figure.
        caption: exact meaning, with units.
        series: drawn in this order; those of form "stack" are stacked, the first at the bottom.
        scale: of the y axis; default: linear around the values.
        rules: (value, label) of reference lines.
        zero_band: share of the axis that ``scale`` reserves for exact zeros.
    """
    series = [one for one in series if one.points]
    if not series:
        return None
    steps = sorted({step for one in series for step, _ in one.points})
    stacked = stack([one for one in series if one.form == "stack"])
    tops = [value for one in series for _, value in stacked.get(one.label, one.points)]
    scale = scale or LinearScale.around([*tops, 0.0] if stacked else tops)
    plot = Plot(scale, steps[0], steps[-1])
    return Chart(
        title=title,
        caption=caption,
        x_ticks=[Mark(plot.x(step), str(step)) for step in integer_ticks(steps[0], steps[-1])],
        y_ticks=[Mark(at_share(tick.at), tick.label) for tick in scale.ticks()],
        rules=[Mark(plot.y(value), label) for value, label in rules],
        zero_band_top=None if zero_band is None else at_share(zero_band),
        shapes=[shape for one in series for shape in plot.shapes(one, stacked.get(one.label))],
        keys=[_key(one) for one in series],
        hover=_hover(series, stacked, steps, plot),
    )


def _key(series: Series) -> Key:
    return Key(series.label, series.style, format_number(series.points[-1][1]))


def _hover(
    series: Sequence[Series],
    stacked: Mapping[str, Points],
    steps: Sequence[int],
    plot: Plot,
) -> dict[str, object]:
    rows = []
    for one in series:
        values, tops = dict(one.points), dict(stacked.get(one.label, one.points))
        rows.append(
            {
                "label": one.label,
                "style": one.style,
                "y": [plot.y(tops[step]) if step in tops else None for step in steps],
                "text": [format_number(values[step]) if step in values else None for step in steps],
            }
        )
    return {"steps": list(steps), "x": [plot.x(step) for step in steps], "rows": rows}
