"""Plots as plain geometry: what a template needs to draw an SVG and the table beneath it.

No library is used, because a build draws thousands of plots, each in a millisecond or less. Pages
on which readers filter also get the same series as data, which ``charts.js`` draws again with
Observable Plot.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cepheid.leaderboard.plots.scale import LARGEST, LEAST, TICKS_MAX, Scale, Tick, format_tick

WIDTH, HEIGHT = 480.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 14.0, 12.0, 46.0
COLOURS = 8  # further series are grey
MARKS_WITH_TITLES_MAX = 400
LOG_RATIO = 8  # values further apart than this get a logarithmic axis

_VENDOR = re.compile(r"^(NVIDIA|AMD|Intel(\(R\))?) (GeForce |Radeon )?")
Line = Literal["solid", "dashed", "none"]
Mark = Literal["dot", "cross", "cross_at_end", "none"]
SHAPES = ("disc", "square", "diamond", "triangle", "plus")  # by colour, for those who see none
NAME_LENGTH = 20  # characters beside a line


@dataclass(frozen=True)
class Axis:
    """What an axis shows.

    With ``is_log`` None, it is logarithmic where the values are far apart. Ticks are at ``values``
    if there are not too many of them, otherwise at round numbers. Larger values than ``limit`` are
    drawn there.
    """

    label: str
    is_log: bool | None = None
    from_zero: bool = False
    values: tuple[float, ...] = ()
    show: Callable[[float], str] = lambda value: format_tick(value)
    limit: float = math.inf


@dataclass(frozen=True)
class Series:
    """Points in one colour. ``ends`` are intervals in y, one for each point, or nothing.

    ``legend`` is what the legend calls it, the label by default; empty for not at all. ``key`` is
    the result that the points belong to, or several with blanks between them; then ``keys`` has
    that of each point. ``band`` has x, least and greatest y of an area behind. With ``is_best`` the
    line goes through the least value at each x. ``is_derived`` says that it follows from another.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int
    line: Line = "solid"
    mark: Mark = "dot"
    ends: tuple[tuple[float, float] | None, ...] = ()
    legend: str | None = None
    key: str = ""
    keys: tuple[str, ...] = ()
    band: tuple[tuple[float, float, float], ...] = ()
    is_best: bool = False
    is_derived: bool = False

    @property
    def place_in_legend(self) -> str:
        """What the legend calls it; empty where it is not in the legend."""
        return self.label if self.legend is None else self.legend

    @property
    def short(self) -> str:
        """What stands beside its end: without submitter and vendor."""
        text = _VENDOR.sub("", self.label.rsplit("/", 1)[-1])
        return text if len(text) <= NAME_LENGTH else text[: NAME_LENGTH - 1] + "…"


@dataclass(frozen=True)
class Guide:
    """A dashed horizontal line with a name: a target, a ratio of 1."""

    value: float
    label: str


@dataclass(frozen=True)
class Table:
    """The numbers of a plot."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class DrawnMark:
    """A mark and what it says of itself."""

    x: float
    y: float
    kind: Mark
    title: str
    low: float | None = None
    high: float | None = None
    key: str = ""


@dataclass(frozen=True)
class DrawnSeries:
    """A series in the units of the drawing."""

    label: str
    colour: int
    line: Line
    path: str
    marks: tuple[DrawnMark, ...]
    key: str
    band: str


@dataclass(frozen=True)
class LegendLine:
    """A line of the legend."""

    colour: int
    shape: str
    line: Line
    mark: Mark
    label: str


@dataclass(frozen=True)
class DrawnGuide:
    """A guide in the units of the drawing; the label stands above or below the line."""

    y: float
    label_y: float
    label: str


@dataclass(frozen=True)
class Plot:
    """Everything that a template draws."""

    name: str
    title: str
    description: str
    note: str
    x_label: str
    y_label: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    series: tuple[DrawnSeries, ...]
    guides: tuple[DrawnGuide, ...]
    legend: tuple[LegendLine, ...]
    table: Table | None
    data: Mapping[str, Any]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM


def make_plot(
    name: str,
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    *,
    guides: Sequence[Guide] = (),
    table: Table | None = None,
    description: str = "",
    more: Sequence[Series] = (),
) -> Plot | None:
    """Make a plot of all finite points, or return None; ``name`` is unique on its page.

    ``more`` are series that a reader sees where a filter leaves out those before them.
    """
    data = _describe(x, y, series, more, guides)
    finite = [_keep_finite(one, x.is_log is True, y.is_log is True) for one in series]
    beyond = sum(a > x.limit or b > y.limit for one in finite for a, b in one.points)
    series = [_clip(one, x.limit, y.limit) for one in finite]
    xs = [point[0] for one in series for point in one.points]
    ys = [point[1] for one in series for point in one.points]
    if not xs:
        return None
    ends = [value for one in series for pair in one.ends if pair for value in pair]
    ends += [value for one in series for corner in one.band for value in corner[1:]]
    across = _make_scale(xs, x, LEFT, WIDTH - RIGHT)
    up = _make_scale([*ys, *ends, *(guide.value for guide in guides)], y, HEIGHT - BOTTOM, TOP)
    titled = sum(len(one.points) for one in series) <= MARKS_WITH_TITLES_MAX
    drawn = tuple(_draw_series(one, across, up, x, y, titled) for one in series)
    legend = dict.fromkeys(
        LegendLine(s.colour, get_shape(s.colour), s.line, s.mark, s.place_in_legend)
        for s in series
        if s.place_in_legend and s.points
    )
    if beyond:
        description += f" {beyond} point{' lies' if beyond == 1 else 's lie'} beyond the axis."
    return Plot(
        name=name,
        title=title,
        note=description,
        description=description or f"{y.label} against {x.label}, {len(xs):,} points.",
        x_label=x.label + (", log scale" if across.is_log else ""),
        y_label=y.label + (", log scale" if up.is_log else ""),
        x_ticks=across.make_ticks(x.show, sorted({min(value, x.limit) for value in x.values})),
        y_ticks=up.make_ticks(y.show, y.values),
        series=drawn,
        guides=tuple(_draw_guide(guide, up) for guide in guides),
        legend=tuple(legend) if len(legend) > 1 else (),
        table=table,
        data=data,
    )


def get_shape(colour: int) -> str:
    """Return the shape of the marks of a colour."""
    return SHAPES[colour % len(SHAPES)]


def _clip(one: Series, x_limit: float, y_limit: float) -> Series:
    """Move points beyond the limits of the axes to them."""
    if math.isinf(x_limit) and math.isinf(y_limit):
        return one
    points = tuple((min(a, x_limit), min(b, y_limit)) for a, b in one.points)
    return replace(one, points=points)


def _describe(
    x: Axis, y: Axis, series: Sequence[Series], more: Sequence[Series], guides: Sequence[Guide]
) -> dict[str, Any]:
    """Describe a plot as data, in units of its axes, for ``charts.js``."""

    def describe_axis(axis: Axis) -> dict[str, Any]:
        given = sorted(set(axis.values)) if 0 < len(set(axis.values)) <= TICKS_MAX else []
        names = [[value, axis.show(value)] for value in given]
        limit = axis.limit if math.isfinite(axis.limit) else None
        return {"label": axis.label, "log": axis.is_log, "zero": axis.from_zero, "limit": limit,
                "ticks": names}  # fmt: skip

    def shorten(values: Iterable[float]) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    kept = ("label", "short", "colour", "line", "mark", "key", "keys", "is_best")
    drawn = [_keep_finite(one, x.is_log is True, y.is_log is True) for one in (*series, *more)]
    return {
        "x": describe_axis(x),
        "y": describe_axis(y),
        "most": len({one.key for one in series}) if more else None,
        "series": [
            {name: getattr(one, name) for name in kept}
            | {"legend": one.place_in_legend, "shape": get_shape(one.colour)}
            | {"points": list(map(shorten, one.points)), "band": list(map(shorten, one.band))}
            | {"ends": [pair and shorten(pair) for pair in one.ends]}
            for one in drawn
            if not one.is_derived
        ],
        "guides": [[guide.value, guide.label] for guide in guides],
    }


def pick_colour(number: int) -> int:
    """Return the number of the colour of the n-th series."""
    return min(number, COLOURS)


def _make_scale(values: Sequence[float], axis: Axis, first: float, last: float) -> Scale:
    low, high = min(values), max(values)
    is_log = axis.is_log
    if is_log is None:
        is_log = low >= LEAST and high > LOG_RATIO * low
    if is_log and low >= LEAST:
        margin = (high / low) ** 0.06 if high > low * (1 + 1e-6) else 1.5
        return Scale(low / margin, high * margin, True, first, last)
    if axis.from_zero and low >= 0:
        low = 0.0
    size = max(abs(low), abs(high))
    width = high - low if high - low > 1e-9 * size else size
    if width < LEAST:
        width = 1.0
    below = 0.0 if axis.from_zero and low == 0 else 0.06 * width
    return Scale(low - below, high + 0.06 * width, False, first, last)


def _keep_finite(one: Series, x_log: bool, y_log: bool) -> Series:

    def keep_ends(pair: tuple[float, float] | None) -> tuple[float, float] | None:
        least = LEAST if y_log else -LARGEST
        return pair if pair and all(least <= value <= LARGEST for value in pair) else None

    kept = [
        (point, keep_ends(one.ends[number]) if one.ends else None, number)
        for number, point in enumerate(one.points)
        if all(abs(value) <= LARGEST for value in point)
        and (point[0] >= LEAST or not x_log)
        and (point[1] >= LEAST or not y_log)
    ]
    points, ends = tuple(point for point, _, _ in kept), tuple(pair for _, pair, _ in kept)
    keys = tuple(one.keys[number] for _, _, number in kept) if one.keys else ()
    is_drawn = all(abs(value) <= LARGEST for corner in one.band for value in corner)
    is_drawn &= all(corner[0] >= LEAST or not x_log for corner in one.band)
    is_drawn &= all(corner[1] >= LEAST or not y_log for corner in one.band)
    return replace(one, points=points, ends=ends, keys=keys, band=one.band if is_drawn else ())


def _draw_series(
    one: Series, across: Scale, up: Scale, x: Axis, y: Axis, titled: bool
) -> DrawnSeries:
    places = [(across(a), up(b)) for a, b in one.points]
    ordered = pick_best(one.points) if one.is_best else one.points
    line = " ".join(f"{across(a):g},{up(b):g}" for a, b in ordered) if len(ordered) > 1 else ""
    corners = [(a, low) for a, low, _ in one.band] + [(a, b) for a, _, b in reversed(one.band)]
    band = " ".join(f"{across(a):g},{up(b):g}" for a, b in corners)
    marks = []
    if one.mark == "cross_at_end" and places:
        marks.append(DrawnMark(*places[-1], "cross", f"{one.label}: did not converge"))
    elif one.mark != "none":
        for number, (a, b) in enumerate(places):
            pair = one.ends[number] if one.ends else None
            values = one.points[number]
            title = f"{one.label}: {x.show(values[0])}, {y.show(values[1])}" if titled else ""
            low, high = (up(pair[0]), up(pair[1])) if pair else (None, None)
            key = one.keys[number] if one.keys else ""
            marks.append(DrawnMark(a, b, one.mark, title, low, high, key))
    path = line if one.line != "none" else ""
    return DrawnSeries(one.label, one.colour, one.line, path, tuple(marks), one.key, band)


def pick_best(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Pick the least value at each x, from the left to the right."""
    best: dict[float, float] = {}
    for x, y in points:
        best[x] = min(y, best.get(x, math.inf))
    return sorted(best.items())


def _draw_guide(guide: Guide, up: Scale) -> DrawnGuide:
    y = up(guide.value)
    return DrawnGuide(y, y - 5 if y > TOP + 20 else y + 14, guide.label)


def make_table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table of the texts of the values."""
    return Table(tuple(header), tuple(tuple(map(str, row)) for row in rows))
