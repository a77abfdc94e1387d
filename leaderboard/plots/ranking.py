"""Rankings: one row for each system, its score and interval on a logarithmic axis of all rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cepheid.compliance.score.comparison import Rank
from cepheid.compliance.score.kinds import BenchmarkKind
from cepheid.leaderboard.plots.plot import COLOURS, LARGEST, LEAST, SHAPES
from cepheid.leaderboard.rows.cells import format_range, format_value
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.rows.tables import rank_rows

SHOWN = 5  # rows; those of slower systems are folded away
MARGIN = 0.02  # of the axis, so that no mark is cut off


@dataclass(frozen=True)
class VendorMark:
    """Colour and shape of a submitter in all rankings of a page."""

    colour: int
    shape: str


@dataclass(frozen=True)
class RankedRow:
    """A system. Places are percentages of the width of the axis."""

    entry: Entry
    name: str
    rank: Rank
    mark: VendorMark
    place: float
    low: float
    high: float
    value: str
    interval: str


@dataclass(frozen=True)
class Gridline:
    """A round value of the axis, and its place in percent of the width."""

    place: float
    label: str


@dataclass(frozen=True)
class Ranking:
    """The systems of one benchmark, scale and division, the fastest first."""

    gridlines: tuple[Gridline, ...]
    rows: tuple[RankedRow, ...]

    @property
    def shown(self) -> tuple[RankedRow, ...]:
        """The rows that are seen at once."""
        return self.rows[:SHOWN]

    @property
    def folded(self) -> tuple[RankedRow, ...]:
        """The rows of slower systems."""
        return self.rows[SHOWN:]


def choose_marks(entries: Sequence[Entry]) -> dict[str, VendorMark]:
    """Choose colour and shape for each submitter, those with the most results first."""
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.has_score:
            counts[entry.names.submitter] = counts.get(entry.names.submitter, 0) + 1
    order = sorted(counts, key=lambda name: (-counts[name], name))
    return {
        name: VendorMark(number % COLOURS, SHAPES[(number + number // COLOURS) % len(SHAPES)])
        for number, name in enumerate(order)
    }


def make_ranking(entries: Sequence[Entry], marks: Mapping[str, VendorMark]) -> Ranking | None:
    """Rank the results of a benchmark, scale and division that have a score; None without any."""
    scored = [
        (entry, rank, entry.standing.score.main)
        for entry, rank in rank_rows(entries)
        if rank and entry.standing.score and _is_drawn(entry.standing.score.main.mean)
    ]
    if not scored:
        return None
    kind = scored[0][0].kind
    values = [
        value
        for _, _, main in scored
        for value in (main.mean, main.low, main.high)
        if value is not None and _is_drawn(value)
    ]
    find_place, gridlines = _make_axis(min(values), max(values), kind)
    rows = (
        RankedRow(
            entry=entry,
            name=entry.name,
            rank=rank,
            mark=marks[entry.names.submitter],
            place=find_place(main.mean),
            low=find_place(main.mean if main.low is None else main.low),
            high=find_place(main.mean if main.high is None else main.high),
            value=format_value(kind, main.mean),
            interval=format_range(entry),
        )
        for entry, rank, main in scored
    )
    return Ranking(gridlines, tuple(rows))


def _is_drawn(value: float) -> bool:
    return LEAST < value < LARGEST


def _make_axis(
    low: float, high: float, kind: BenchmarkKind
) -> tuple[Callable[[float], float], tuple[Gridline, ...]]:
    """Return what finds the place of a value, and lines at round values within the axis."""
    first, last = math.log(low), math.log(high)
    if last - first < math.log(1.5):  # differences that are nothing must not look large
        middle = (first + last) / 2
        first, last = middle - math.log(1.5) / 2, middle + math.log(1.5) / 2
    width = last - first

    def find_place(value: float) -> float:
        share = (math.log(max(value, LEAST)) - first) / width
        return round(100 * (MARGIN + min(max(share, 0.0), 1.0) * (1 - 2 * MARGIN)), 2)

    unit = kind.choose_unit(math.exp((first + last) / 2))
    marked = _pick_round_values(math.exp(first) * unit.factor, math.exp(last) * unit.factor)
    short = f" {unit.name}" if len(unit.name) <= len("min") else ""
    lines = [Gridline(find_place(one / unit.factor), f"{one:,.10g}{short}") for one in marked]
    return find_place, tuple(_drop_close(lines))


def _drop_close(lines: Sequence[Gridline]) -> list[Gridline]:
    """Drop lines whose labels would touch that of the line before.

    Labels near the ends of the axis stand beside their lines, as the template places them.
    """
    kept: list[Gridline] = []
    end = -math.inf
    for line in lines:
        width = 4.0 * len(line.label)
        start = line.place - width * (0.0 if line.place < 8 else 1.0 if line.place > 92 else 0.5)
        if start >= end + 1.0:
            kept.append(line)
            end = start + width
    return kept


def _pick_round_values(low: float, high: float) -> list[float]:
    """Pick up to about six round values from ``low`` to ``high``."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
                  (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):  # fmt: skip
        values = [step * 10.0**decade for decade in decades for step in steps]
        inside = [value for value in values if low <= value <= high]
        if len(inside) <= 6:
            return inside
    return inside[:: math.ceil(len(inside) / 6)]
