"""Positions of a series in a chart, in pixels of its view box: x to the right, y down."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from zerogap.report.scales import Scale

WIDTH, HEIGHT = 520, 224
LEFT, RIGHT, TOP, BOTTOM = 62, 508, 10, 198
"""The plot's edges within the view box."""
DENSE = 300
"""Lines with more points are drawn thinner, since they cross pixels more than once."""

Form = Literal["line", "halo", "points", "stack"]
"""A line; a wide pale line under another; marked points, joined over missing steps; stacked bars, negative ones down from 0."""
Points = Sequence[tuple[int, float]]
"""(step, value) with ascending steps; missing steps were not measured."""


@dataclass(frozen=True)
class Series:
    """One metric over steps."""

    label: str
    slot: int
    """Colour in the page's palette, from 1."""
    points: Points
    form: Form = "line"

    @property
    def style(self) -> str:
        """CSS classes."""
        return f"s{self.slot} {self.form}"


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
class Plot:
    """A chart's two axes."""

    scale: Scale
    first: int
    """Leftmost step."""
    last: int
    """Rightmost step."""

    @property
    def step_width(self) -> float:
        """Pixels from one step to the next."""
        return (RIGHT - LEFT) / (self.last - self.first + 1)

    def x(self, step: int) -> float:
        """The middle of a step."""
        return round(LEFT + (step - self.first + 0.5) * self.step_width, 2)

    def y(self, value: float) -> float:
        """Position of a value; infinities lie on the edge."""
        if math.isinf(value):
            return TOP if value > 0 else BOTTOM
        return at_share(self.scale.place(value))

    def shapes(self, series: Series, tops: Points | None) -> list[Shape]:
        """What to draw: bars that end at ``tops`` for a stack, else lines, and dots for lines of one point."""
        style = series.style + (" dense" if len(series.points) > DENSE else "")
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

    def _bars(self, heights: Points, tops: Points) -> str:
        gap = 1.5 if self.step_width > 6 else 0.0  # thin bars would be mostly gap
        width = round(min(self.step_width - gap, 40.0), 2)
        bars = []
        for (step, height), (_, top) in zip(heights, tops, strict=True):
            x, y, base = self.x(step) - width / 2, self.y(top), self.y(top - height)
            bars.append(f"M{x:.2f},{base}V{y}h{width}V{base}z")
        return "".join(bars)


def at_share(share: float) -> float:
    """Position of a share of the y axis."""
    return round(BOTTOM - share * (BOTTOM - TOP), 2)


def stack(series: Sequence[Series]) -> dict[str, list[tuple[int, float]]]:
    """Label -> (step, end of its bar away from 0); bars are stacked in order, negative values down from 0."""
    reached: dict[tuple[int, bool], float] = {}
    tops: dict[str, list[tuple[int, float]]] = {}
    for one in series:
        tops[one.label] = []
        for step, value in one.points:
            side = (step, value < 0)
            reached[side] = reached.get(side, 0.0) + value
            tops[one.label].append((step, reached[side]))
    return tops


def _runs(points: Points) -> list[list[tuple[int, float]]]:
    """Runs of consecutive steps: a line must not suggest values that were not measured."""
    runs: list[list[tuple[int, float]]] = []
    for step, value in points:
        if runs and runs[-1][-1][0] == step - 1:
            runs[-1].append((step, value))
        else:
            runs.append([(step, value)])
    return runs
