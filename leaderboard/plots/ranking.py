"""Rankings: one row for each system, its score and interval on a logarithmic axis of all rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cepheid.compliance.score.comparison import Rank, format_ratio, ratio
from cepheid.compliance.score.kinds import Unit
from cepheid.leaderboard.plots.scale import LARGEST, LEAST, pick_log_ticks
from cepheid.leaderboard.rows.cells import format_ends, format_value
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.rows.tables import rank_rows

SHOWN = 5  # rows; those of slower systems are folded away
MARGIN = 0.02  # of the axis, so that no mark is cut off
TICKS = 6


@dataclass(frozen=True)
class RankedRow:
    """A system. Places are percentages of the width of the axis.

    ``rank`` is None for a result whose number proves nothing yet: its mark is hollow.
    """

    entry: Entry
    name: str
    rank: Rank | None
    colour: int
    ends: tuple[float, float, float]
    places: tuple[float, float, float]
    value: str
    interval: str


@dataclass(frozen=True)
class Gridline:
    """A round value of the axis, and its place in percent of the width."""

    place: float
    label: str


@dataclass(frozen=True)
class Ranking:
    """The systems of one benchmark, scale and division, the fastest first.

    ``lead`` says by how much the first is ahead, ``unit`` is that of all numbers.
    """

    gridlines: tuple[Gridline, ...]
    rows: tuple[RankedRow, ...]
    lead: str
    unit: Unit

    @property
    def shown(self) -> tuple[RankedRow, ...]:
        """The rows that are seen at once."""
        return self.rows[:SHOWN]

    @property
    def folded(self) -> tuple[RankedRow, ...]:
        """The rows of slower systems."""
        return self.rows[SHOWN:]


def make_ranking(entries: Sequence[Entry], colours: Mapping[str, int]) -> Ranking | None:
    """Rank the results of a benchmark, scale and division; None where no result has a number.

    Below them stand those with a number so far, the fastest first.
    """
    ranked = [(entry, rank, ends) for entry, rank in rank_rows(entries)
              if rank and (ends := _find_ends(entry))]  # fmt: skip
    so_far = [(entry, None, ends) for entry in entries
              if not entry.is_ranked and (ends := _find_ends(entry))]  # fmt: skip
    so_far.sort(key=lambda one: one[0].kind.cost(one[2][0]))
    if not (ranked or so_far):
        return None
    kind, every = entries[0].kind, [*ranked, *so_far]
    values = [value for _, _, ends in every for value in ends]
    unit = kind.choose_unit(math.exp((math.log(min(values)) + math.log(max(values))) / 2))
    find_place, gridlines = make_axis(min(values), max(values), unit)
    rows = (
        RankedRow(
            entry,
            entry.name,
            rank,
            colours[entry.id],
            ends,
            (find_place(ends[0]), find_place(ends[1]), find_place(ends[2])),
            format_value(kind, ends[0], unit) + (" so far" if entry.standing.so_far else ""),
            format_ends(*ends, unit) if ends[1] < ends[2] else _say_what_is_missing(entry),
        )
        for entry, rank, ends in every
    )
    return Ranking(gridlines, tuple(rows), _describe_lead([one[0] for one in ranked]), unit)


def _find_ends(entry: Entry) -> tuple[float, float, float] | None:
    """Find the number of a result and its interval; of one with too few runs, the mean so far."""
    if entry.standing.score:
        main = entry.standing.score.main
        ends = (main.mean, main.low or main.mean, main.high or main.mean)
    else:
        value = entry.standing.so_far.get(entry.kind.ranked_by, 0.0)
        ends = value, value, value
    return ends if all(LEAST < end < LARGEST for end in ends) else None


def _say_what_is_missing(entry: Entry) -> str:
    """Say why a number has no rank: ``1 of 5 runs``."""
    if entry.standing.so_far:
        return f"{entry.counts.made} of {entry.counts.required} runs"
    return "" if entry.is_ranked else "provisional" if entry.standing.doubt else "only a time"


def _describe_lead(ranked: Sequence[Entry]) -> str:
    """Say how many times as fast the first is as the second, and whether that is proven."""
    if len(ranked) < 2 or ranked[0].level is None or ranked[1].level is None:
        return ""
    found = ratio(ranked[0].level, ranked[1].level)
    if not found.is_difference:
        return "The first two cannot be told apart."
    interval = f"{format_ratio(found.low or 0)}–{format_ratio(found.high or 0)}"
    return f"The first is {format_ratio(found.value)} times as fast as the second ({interval})."


def make_axis(
    low: float, high: float, unit: Unit
) -> tuple[Callable[[float], float], tuple[Gridline, ...]]:
    """Return what finds the place of a value, and lines at round values within the axis."""
    first, last = math.log(low), math.log(high)
    if last - first < math.log(1.5):  # differences that are nothing must not look large
        middle = (first + last) / 2
        first, last = middle - math.log(1.5) / 2, middle + math.log(1.5) / 2
    width = last - first

    def find_place(value: float) -> float:
        share = (math.log(max(value, LEAST)) - first) / width
        return round(100 * (MARGIN + min(max(share, 0.0), 1.0) * (1 - 2 * MARGIN)), 1)

    marked = pick_log_ticks(math.exp(first) * unit.factor, math.exp(last) * unit.factor, TICKS)
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
        width = 4.6 * len(line.label)
        start = line.place - width * (0.0 if line.place < 8 else 1.0 if line.place > 92 else 0.5)
        if start >= end + 1.0:
            kept.append(line)
            end = start + width
    return kept
