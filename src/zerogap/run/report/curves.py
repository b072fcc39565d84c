"""Charts over steps as SVG geometry: the template only draws what is here.

Pixels are those of the view box, x to the right, y down. ``slot`` is a colour of the page's palette, from 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from zerogap.run.report.numbers import format_number
from zerogap.run.report.scales import LinearScale, Scale, integer_ticks

WIDTH, HEIGHT = 520, 224
LEFT, RIGHT, TOP, BOTTOM = 62, 508, 10, 198
"""The plot's edges within the view box."""

Form = Literal["line", "halo", "points", "stack"]
"""line; a wide pale line, to lie under another; marked points joined over steps without a value; stacked bars."""


@dataclass(frozen=True)
class Series:
    """One metric over steps."""

    label: str
    slot: int
    points: Sequence[tuple[int, float]]
    """(step, value), steps rising; a step that is missing was not measured."""
    form: Form = "line"


@dataclass(frozen=True)
class Shape:
    """A path or a dot of one series."""

    kind: Literal["path", "dot"]
    style: str
    """CSS classes."""
    d: str = ""
    x: float = 0.0
    y: float = 0.0


@dataclass(frozen=True)
class Mark:
    """A tick: its pixel along the axis, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Key:
    """A line of the legend."""

    label: str
    style: str
    last: str
    """The newest value."""


@dataclass(frozen=True)
class Chart:
    """What one figure shows."""

    title: str
    caption: str
    x_ticks: list[Mark]
    y_ticks: list[Mark]
    rules: list[Mark]
    """Dashed horizontal lines of reference."""
    zero_band_top: float | None
    """Where the band of exact zeros begins; it ends at the plot's bottom."""
    shapes: list[Shape]
    keys: list[Key]
    hover: dict[str, object]
    """steps, x [steps], and per series its label, style, y [steps] and text [steps]; null where not measured."""


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
        title: in words.
        caption: what exactly is drawn, units included.
        series: drawn in this order, the first lowest; those of form "stack" stand on each other.
        scale: of the y axis; linear around the values by default.
        rules: (value, label) of reference lines.
        zero_band: share of the axis that ``scale`` keeps for exact zeros.
    """
    series = [one for one in series if one.points]
    if not series:
        return None
    steps = sorted({step for one in series for step, _ in one.points})
    stacked = _stack([one for one in series if one.form == "stack"])
    tops = [value for one in series for _, value in stacked.get(one.label, one.points)]
    scale = scale or LinearScale.around([*tops, 0.0] if stacked else tops)
    plot = _Plot(scale, steps[0], steps[-1])
    return Chart(
        title=title,
        caption=caption,
        x_ticks=[Mark(plot.x(step), str(step)) for step in integer_ticks(steps[0], steps[-1])],
        y_ticks=[Mark(_from_share(tick.at), tick.label) for tick in scale.ticks()],
        rules=[Mark(plot.y(value), label) for value, label in rules],
        zero_band_top=None if zero_band is None else _from_share(zero_band),
        shapes=[shape for one in series for shape in plot.shapes(one, stacked.get(one.label))],
        keys=[_key(one) for one in series],
        hover=_hover(series, stacked, steps, plot),
    )


@dataclass(frozen=True)
class _Plot:
    scale: Scale
    first: int
    last: int

    @property
    def step_width(self) -> float:
        """Pixels from one step to the next."""
        return (RIGHT - LEFT) / (self.last - self.first + 1)

    def x(self, step: int) -> float:
        return round(LEFT + (step - self.first + 0.5) * self.step_width, 2)

    def y(self, value: float) -> float:
        """Infinities lie on the edge they point to."""
        if math.isinf(value):
            return TOP if value > 0 else BOTTOM
        return _from_share(self.scale.place(value))

    def shapes(self, series: Series, tops: Sequence[tuple[int, float]] | None) -> list[Shape]:
        style = f"s{series.slot} {series.form}"
        if tops is not None:
            return [Shape("path", style, d=self._bars(series.points, tops))]
        runs = [list(series.points)] if series.form == "points" else _runs(series.points)
        at = [[(self.x(step), self.y(value)) for step, value in run] for run in runs]
        lines = [
            Shape("path", style, d="M" + "L".join(f"{x},{y}" for x, y in run))
            for run in at
            if len(run) > 1
        ]
        is_dotted = [series.form == "points" or len(run) == 1 for run in at]
        dotted = [point for run, dots in zip(at, is_dotted, strict=True) if dots for point in run]
        return [*lines, *(Shape("dot", style, x=x, y=y) for x, y in dotted)]

    def _bars(self, heights: Sequence[tuple[int, float]], tops: Sequence[tuple[int, float]]) -> str:
        gap = 1.5 if self.step_width > 6 else 0.0  # thin bars would be mostly gap
        width = round(min(self.step_width - gap, 40.0), 2)
        bars = []
        for (step, height), (_, top) in zip(heights, tops, strict=True):
            x, y, base = self.x(step) - width / 2, self.y(top), self.y(top - height)
            bars.append(f"M{x:.2f},{base}V{y}h{width}V{base}z")
        return "".join(bars)


def _from_share(share: float) -> float:
    return round(BOTTOM - share * (BOTTOM - TOP), 2)


def _runs(points: Sequence[tuple[int, float]]) -> list[list[tuple[int, float]]]:
    """Points of consecutive steps; a line must not suggest values where nothing was measured."""
    runs: list[list[tuple[int, float]]] = []
    for step, value in points:
        if runs and runs[-1][-1][0] == step - 1:
            runs[-1].append((step, value))
        else:
            runs.append([(step, value)])
    return runs


def _stack(series: Sequence[Series]) -> dict[str, list[tuple[int, float]]]:
    """Label -> (step, top of its bar)."""
    reached: dict[int, float] = {}
    tops: dict[str, list[tuple[int, float]]] = {}
    for one in series:
        tops[one.label] = []
        for step, value in one.points:
            reached[step] = reached.get(step, 0.0) + value
            tops[one.label].append((step, reached[step]))
    return tops


def _key(series: Series) -> Key:
    return Key(series.label, f"s{series.slot} {series.form}", format_number(series.points[-1][1]))


def _hover(
    series: Sequence[Series],
    stacked: dict[str, list[tuple[int, float]]],
    steps: Sequence[int],
    plot: _Plot,
) -> dict[str, object]:
    rows = []
    for one in series:
        values, tops = dict(one.points), dict(stacked.get(one.label, one.points))
        rows.append(
            {
                "label": one.label,
                "style": f"s{one.slot} {one.form}",
                "y": [plot.y(tops[step]) if step in tops else None for step in steps],
                "text": [format_number(values[step]) if step in values else None for step in steps],
            }
        )
    return {"steps": list(steps), "x": [plot.x(step) for step in steps], "rows": rows}
