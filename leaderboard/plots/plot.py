"""Plots as plain geometry: what a template needs to draw an SVG and the table beneath it.

No library is used, because a build draws thousands of plots, each in a millisecond or less.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

WIDTH, HEIGHT = 480.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 14.0, 12.0, 46.0
COLOURS = 8  # further series are grey
MARKS_WITH_TITLES_MAX = 400
TICKS_MAX = 9
LEAST, LARGEST = 1e-100, 1e100  # numbers beyond these are drawn as 0, or not at all
LOG_RATIO = 8  # values further apart than this get a logarithmic axis

Line = Literal["solid", "dashed", "none"]
Mark = Literal["dot", "cross", "cross_at_end", "none"]
SHAPES = ("disc", "square", "diamond", "triangle", "plus")  # by colour, for those who see none
LABELS_MAX = 6  # series that are named beside their ends
LABEL_WIDTH, LABEL_HEIGHT, LABEL_LENGTH = 104.0, 13.0, 16


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

    ``key`` is the result that the points belong to, or several with blanks between them; then
    ``keys`` has that of each point. ``band`` are the corners of an area behind.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int
    line: Line = "solid"
    mark: Mark = "dot"
    ends: tuple[tuple[float, float] | None, ...] = ()
    in_legend: bool = True
    key: str = ""
    keys: tuple[str, ...] = ()
    band: tuple[tuple[float, float], ...] = ()


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
class Tick:
    """Where a tick stands and what it says."""

    place: float
    label: str


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
class DirectLabel:
    """The name of a series beside its last point."""

    x: float
    y: float
    text: str
    colour: int
    key: str


@dataclass(frozen=True)
class LegendLine:
    """A line of the legend."""

    colour: int
    shape: str
    line: Line
    label: str
    key: str


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
    labels: tuple[DirectLabel, ...]
    table: Table | None
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
) -> Plot | None:
    """Make a plot of all finite points, or return None; ``name`` is unique on its page."""
    finite = [_keep_finite(one, x.is_log is True, y.is_log is True) for one in series]
    beyond = sum(a > x.limit or b > y.limit for one in finite for a, b in one.points)
    series = [_clip(one, x.limit, y.limit) for one in finite]
    named = _pick_named(series)
    right = WIDTH - (LABEL_WIDTH if named else RIGHT)
    xs = [point[0] for one in series for point in one.points]
    ys = [point[1] for one in series for point in one.points]
    if not xs:
        return None
    ends = [value for one in series for pair in one.ends if pair for value in pair]
    ends += [corner[1] for one in series for corner in one.band]
    across = _make_scale(xs, x, LEFT, right)
    up = _make_scale([*ys, *ends, *(guide.value for guide in guides)], y, HEIGHT - BOTTOM, TOP)
    titled = sum(len(one.points) for one in series) <= MARKS_WITH_TITLES_MAX
    drawn = tuple(_draw_series(one, across, up, x, y, titled) for one in series)
    legend = dict.fromkeys(
        LegendLine(s.colour, get_shape(s.colour), s.line, s.label, s.key)
        for s in series
        if s.in_legend and s.points
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
        labels=tuple(_place_labels(named, across, up)),
        table=table,
        right=right,
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


def _pick_named(series: Sequence[Series]) -> list[Series]:
    """Pick the series that are named beside their ends: one of each label, if they are few."""
    by_label = {
        s.label: s for s in reversed(series) if s.in_legend and s.points and s.key and not s.keys
    }
    named = list(by_label.values())
    return named if 1 < len(named) <= LABELS_MAX else []


def _place_labels(named: Sequence[Series], across: "Scale", up: "Scale") -> Iterator[DirectLabel]:
    """Place the names beside the last points, one below the other where they would overlap."""
    ends = [(up(s.points[-1][1]), across(s.points[-1][0]), s) for s in named]
    ends.sort(key=lambda end: (end[0], end[2].label))
    last = -math.inf
    for y, x, one in ends:
        last = max(y + 4, last + LABEL_HEIGHT)
        text = one.label.rsplit("/", 1)[-1]
        short = text if len(text) <= LABEL_LENGTH else text[: LABEL_LENGTH - 1] + "…"
        yield DirectLabel(round(x + 7, 1), round(last, 1), short, one.colour, one.key)


def pick_colour(number: int) -> int:
    """Return the number of the colour of the n-th series."""
    return min(number, COLOURS)


def format_tick(value: float) -> str:
    """Return a number as an axis shows it: ``1,000``, ``0.05``, ``2.5M``."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


@dataclass(frozen=True)
class Scale:
    """A map from values to places, ``low`` to ``first`` and ``high`` to ``last``."""

    low: float
    high: float
    is_log: bool
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high = self._ends
        share = ((math.log10(value) if self.is_log else value) - low) / (high - low)
        return round(self.first + share * (self.last - self.first), 1)

    @cached_property
    def _ends(self) -> tuple[float, float]:
        is_log = self.is_log
        return (math.log10(self.low), math.log10(self.high)) if is_log else (self.low, self.high)

    def make_ticks(
        self, show: Callable[[float], str], given: Sequence[float] = ()
    ) -> tuple[Tick, ...]:
        """Return ticks at the given values if they are few, otherwise at round values."""
        if 0 < len(given) <= TICKS_MAX:
            return tuple(_drop_close([Tick(self(value), show(value)) for value in sorted(given)]))
        values = (
            _pick_log_ticks(self.low, self.high)
            if self.is_log
            else _pick_ticks(self.low, self.high)
        )
        return tuple(Tick(self(value), show(value)) for value in values)


def _drop_close(ticks: Sequence[Tick]) -> Iterator[Tick]:
    """Drop ticks whose labels would touch that of the tick before."""
    last = -math.inf
    for tick in ticks:
        if abs(tick.place - last) >= 4 + 7 * len(tick.label):
            last = tick.place
            yield tick


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


def _pick_ticks(low: float, high: float) -> list[float]:
    """Return four to nine round values."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _pick_log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        values = [f * 10.0**decade for decade in decades for f in factors]
        inside = [value for value in values if low <= value <= high]
        if len(inside) >= 4 or (factors == (1, 2, 5) and len(inside) == 3):
            break
    if len(inside) < 2:
        inside = [value for value in _pick_ticks(low, high) if value > 0]
    return inside[:: math.ceil(len(inside) / TICKS_MAX) or 1]


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
    return replace(one, points=points, ends=ends, keys=keys, band=one.band if is_drawn else ())


def _draw_series(
    one: Series, across: Scale, up: Scale, x: Axis, y: Axis, titled: bool
) -> DrawnSeries:
    places = [(across(a), up(b)) for a, b in one.points]
    line = " ".join(f"{a:g},{b:g}" for a, b in places) if len(places) > 1 else ""
    band = " ".join(f"{across(a):g},{up(b):g}" for a, b in one.band)
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


def _draw_guide(guide: Guide, up: Scale) -> DrawnGuide:
    y = up(guide.value)
    return DrawnGuide(y, y - 5 if y > TOP + 20 else y + 14, guide.label)


def make_table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table of the texts of the values."""
    return Table(tuple(header), tuple(tuple(map(str, row)) for row in rows))
