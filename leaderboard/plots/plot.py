"""Plots as data: ``drawing.py`` draws them as SVG, ``charts.js`` again with Observable Plot.

No library draws in Python, because a build draws thousands of plots, each in a millisecond or less.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from cepheid.compliance.score.kinds import format_number

COLOURS = 8
GREY = 8  # the ninth, of what belongs to no device
SHAPES: Mapping[str, str] = {  # of marks, by colour, for those who see none
    "disc": '<circle r="5.2"/>',
    "square": '<rect x="-4.8" y="-4.8" width="9.6" height="9.6"/>',
    "diamond": '<path d="M0-6.6L6.6 0L0 6.6L-6.6 0z"/>',
    "triangle": '<path d="M0-6.2L6.2 5H-6.2z"/>',
    "plus": '<path d="M-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z"/>',
}
NAME_LENGTH = 20  # characters beside a line
TICKS_MAX = 9
LEAST, LARGEST = 1e-100, 1e100  # numbers beyond these are drawn as 0, or not at all
LOG_RATIO = 8  # values further apart than this get a logarithmic axis
LETTER, GAP = 8.0, 4.0  # the width of a letter, also on a phone, and between two labels
_VENDOR = re.compile(r"^(NVIDIA|AMD|Intel(\(R\))?) (GeForce |Radeon )?")
_DESCRIBED = ("label", "short", "colour", "line", "mark", "key", "keys", "is_best", "legend")

Line = Literal["solid", "dashed", "none"]
Mark = Literal["dot", "cross", "cross_at_end", "none"]
Point = tuple[float, float]


def pick_colour(number: int) -> int:
    """Return the look of the n-th series: a colour, and how often all of them were used, by nines.

    With its shape and its dashes, each of the first forty looks different; further ones are grey.
    """
    turn, colour = divmod(number, COLOURS)
    return colour + turn * (COLOURS + 1) if turn < len(SHAPES) else GREY


def get_shape(colour: int) -> str:
    """Return the name of the shape of the marks of a look."""
    return list(SHAPES)[sum(divmod(colour, COLOURS + 1)) % len(SHAPES)]


def name_look(colour: int) -> str:
    """Return the class of the colour of a look."""
    return f"c{colour % (COLOURS + 1)}"


@dataclass(frozen=True, slots=True)
class Tick:
    """Where a tick stands and what it says."""

    place: float
    label: str


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
        is_given = 0 < len(given) <= TICKS_MAX
        pick = pick_log_ticks if self.is_log else _pick_ticks
        values = sorted(given) if is_given else pick(self.low, self.high)
        ticks = [Tick(self(value), show(value)) for value in values]
        return tuple(drop_close(ticks) if self.first < self.last else ticks)


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

    def holds(self, value: float) -> bool:
        """Return whether the axis has a place for a value."""
        return abs(value) <= LARGEST and (value >= LEAST or self.is_log is not True)

    def make_scale(self, values: Sequence[float], first: float, last: float) -> Scale:
        """Return the scale on which all values have a place, with a margin."""
        low, high = min(values), max(values)
        is_log = self.is_log
        if is_log is None:
            is_log = low >= LEAST and high > LOG_RATIO * low
        if is_log and low >= LEAST:
            margin = (high / low) ** 0.06 if high > low * (1 + 1e-6) else 1.5
            return Scale(low / margin, high * margin, True, first, last)
        if self.from_zero and low >= 0:
            low = 0.0
        size = max(abs(low), abs(high))
        width = high - low if high - low > 1e-9 * size else size
        if width < LEAST:
            width = 1.0
        below = 0.0 if self.from_zero and low == 0 else 0.06 * width
        return Scale(low - below, high + 0.06 * width, False, first, last)


def drop_close(
    ticks: Iterable[Tick],
    letter: float = LETTER,
    gap: float = GAP,
    anchor: Callable[[float], float] = lambda place: 0.5,
) -> Iterator[Tick]:
    """Drop ticks whose labels would touch that of the tick before.

    ``anchor`` is the share of a label that stands to the left of its tick.
    """
    end = -math.inf
    for tick in ticks:
        width = letter * len(tick.label)
        start = tick.place - width * anchor(tick.place)
        if start >= end + gap:
            end = start + width
            yield tick


def _pick_ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def pick_log_ticks(low: float, high: float, most: int = TICKS_MAX) -> list[float]:
    """Pick round values from ``low`` to ``high``, as many as fit into ``most``."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (
        (1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
        (1, 1.5, 2, 3, 4, 5, 7),
        (1, 2, 5),
        (1, 3),
        (1,),
    ):
        inside = [v for d in decades for step in steps if low <= (v := step * 10.0**d) <= high]
        if len(inside) <= most:
            break
    if len(inside) < 2:
        inside = [value for value in _pick_ticks(low, high) if value > 0]
    return inside[:: math.ceil(len(inside) / most) or 1]


@dataclass(frozen=True)
class Series:
    """Points in one colour. ``ends`` are intervals in y, one for each point, or nothing.

    ``in_legend`` is what the legend calls it, the label by default; empty for not at all. ``key``
    is the result that the points belong to, or several with blanks between them; then ``keys`` has
    that of each point. ``band`` has x, least and greatest y of an area behind. With ``is_best`` the
    line goes through the least value at each x, beside one that falls as x grows.
    """

    label: str
    points: tuple[Point, ...]
    colour: int
    line: Line = "solid"
    mark: Mark = "dot"
    ends: tuple[Point | None, ...] = ()
    in_legend: str | None = None
    key: str = ""
    keys: tuple[str, ...] = ()
    band: tuple[tuple[float, float, float], ...] = ()
    is_best: bool = False

    @property
    def legend(self) -> str:
        """What the legend calls it; empty where it is not in the legend."""
        return self.label if self.in_legend is None else self.in_legend

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


@dataclass(frozen=True)
class Plot:
    """Finite points between two axes; ``name`` is unique on its page.

    ``more`` are series that a reader sees where a filter leaves out those before them. ``front``
    names a line that joins the points that no other beats in both numbers, or is empty.
    """

    name: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    guides: tuple[Guide, ...]
    table: Table
    note: str
    more: tuple[Series, ...]
    front: str

    @property
    def data(self) -> Mapping[str, Any]:
        """The plot in units of its axes, for ``charts.js``."""

        def shorten(values: Iterable[float]) -> list[float]:
            return [float(f"{value:.5g}") for value in values]

        return {
            "x": _describe_axis(self.x),
            "y": _describe_axis(self.y),
            "most": len({one.key for one in self.series}) if self.more else None,
            "series": [
                {name: getattr(one, name) for name in _DESCRIBED}
                | {"shape": get_shape(one.colour)}
                | {"points": list(map(shorten, one.points)), "band": list(map(shorten, one.band))}
                | {"ends": [pair and shorten(pair) for pair in one.ends]}
                for one in (*self.series, *self.more)
            ],
            "guides": [[guide.value, guide.label] for guide in self.guides],
            "front": self.front,
        }


def _describe_axis(axis: Axis) -> dict[str, Any]:
    given = axis.values if len(axis.values) <= TICKS_MAX else ()
    ticks = [[value, axis.show(value)] for value in given]
    return {"label": axis.label, "log": axis.is_log, "zero": axis.from_zero, "ticks": ticks}


def make_plot(
    name: str,
    title: str,
    x: Axis,
    y: Axis,
    series: Sequence[Series],
    *,
    guides: Sequence[Guide] = (),
    table: Table | None = None,
    note: str = "",
    more: Sequence[Series] = (),
    front: str = "",
) -> Plot | None:
    """Make a plot of all finite points, or return None without any.

    The table has all points by default.
    """
    x = replace(x, values=tuple(sorted({min(value, x.limit) for value in x.values})))
    cleaned = tuple(_clean(one, x, y) for one in series)
    if not any(one.points for one in cleaned):
        return None
    beyond = sum(math.isfinite(a) and a > x.limit for one in series for a, _ in one.points)
    if beyond:
        note += f" {beyond} point{' lies' if beyond == 1 else 's lie'} beyond the axis."
    return Plot(
        name, title, x, y, cleaned, tuple(guides), table or _tabulate(x, y, cleaned), note,
        tuple(_clean(one, x, y) for one in more), front,
    )  # fmt: skip


def _clean(one: Series, x: Axis, y: Axis) -> Series:
    """Keep the points that the axes hold, those beyond the limit of x at it."""
    placed = enumerate(one.points)
    kept = [((min(a, x.limit), b), at) for at, (a, b) in placed if x.holds(a) and y.holds(b)]
    pairs = [one.ends[place] if one.ends else None for _, place in kept]
    is_drawn = all(x.holds(a) and y.holds(low) and y.holds(high) for a, low, high in one.band)
    return replace(
        one,
        points=tuple(point for point, _ in kept),
        ends=tuple(pair if pair and all(map(y.holds, pair)) else None for pair in pairs),
        keys=tuple(one.keys[place] for _, place in kept) if one.keys else (),
        band=one.band if is_drawn else (),
    )


def _tabulate(x: Axis, y: Axis, series: Iterable[Series]) -> Table:
    """Tabulate all points, with their intervals where there are any."""
    known = [one for one in series if one.points]
    has_ends = any(pair for one in known for pair in one.ends)
    header = (" ", x.label, y.label, *(("from", "to") if has_ends else ()))
    rows = (
        (one.label, x.show(a), *map(format_number, (b, *(pair or ()))))
        for one in known
        for (a, b), pair in zip(one.points, one.ends or [None] * len(one.points), strict=True)
    )
    return make_table(header, ((*row, *[""] * (len(header) - len(row))) for row in rows))


def make_table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table of the texts of the values."""
    return Table(tuple(header), tuple(tuple(map(str, row)) for row in rows))


def pick_best(points: Iterable[Point]) -> list[Point]:
    """Pick the least value at each x, from the left to the right."""
    best: dict[float, float] = {}
    for x, y in points:
        best[x] = min(y, best.get(x, math.inf))
    return sorted(best.items())


def find_ideal(best: Sequence[Point]) -> list[Point]:
    """Return what falls from the first point on as x grows: twice the devices, half the time."""
    return [(x, best[0][1] * best[0][0] / x) for x, _ in best]


def find_front(points: Iterable[Point]) -> list[Point]:
    """Find the Pareto front: the points that no other beats in both numbers, from the left."""
    front: list[Point] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front
