"""Rankings on a logarithmic axis, one number for a system over all benchmarks, and profiles.

The aggregate is the geometric mean of a system's speed-ups over the *reference result*, which is
fixed, so results of other competitors do not change it. A performance profile (E. D. Dolan, J. J.
Moré, Math. Program. 91 (2002) 201, as AlgoPerf uses it) compares each system with the fastest one,
so it changes when a faster system appears.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cepheid.compliance.score.comparison import Rank, Ratio, mean_ratio, ratio
from cepheid.compliance.score.kinds import Unit
from cepheid.compliance.score.levels import Level
from cepheid.leaderboard.plots.plot import (
    COLOURS,
    LARGEST,
    LEAST,
    Axis,
    Plot,
    Point,
    Scale,
    Series,
    Tick,
    drop_close,
    make_plot,
    make_table,
    pick_log_ticks,
)
from cepheid.leaderboard.rows.cells import (
    format_ends,
    format_ratio_interval,
    format_value,
    rank_rows,
)
from cepheid.leaderboard.rows.entry import Entry

MARGIN = 2.0  # percent of the axis, so that no mark is cut off
TICKS = 6
WIDEST = math.log(1.5)  # an axis is at least so wide: differences that are nothing look small
LETTER = 4.6  # percent of the width
BESIDE = 8  # labels nearer to an end of the axis, in percent, stand beside their lines
REFERENCE_SUBMITTER = "cepheid"
BENCHMARKS_MIN = 2  # of one, the aggregate would be its speed-up
TAUS = (1.0, 1.5, 2.0, 3.0, 4.0)  # as far as AlgoPerf looks

Key = tuple[str, int]
"""A system and the number that tells it from others of its name."""
Levels = dict[Key, dict[str, Level]]


@dataclass(frozen=True)
class RankedRow:
    """A system. Places are percentages of the width of the axis.

    ``rank`` is None for a result whose number proves nothing yet: its mark is hollow.
    """

    entry: Entry
    rank: Rank | None
    colour: int
    ends: tuple[float, ...]
    places: tuple[float, ...]
    value: str
    interval: str


@dataclass(frozen=True)
class Ranking:
    """The systems of one benchmark, scale and division, the fastest first.

    ``lead`` says by how much the first is ahead, ``unit`` is that of all numbers.
    """

    gridlines: tuple[Tick, ...]
    rows: tuple[RankedRow, ...]
    lead: str
    unit: Unit


def make_ranking(entries: Sequence[Entry], colours: Mapping[str, int]) -> Ranking | None:
    """Rank the results of a benchmark, scale and division; None where no result has a number.

    Below them stand those with a number so far, the fastest first.
    """
    ranked = [(entry, rank, ends) for entry, rank in rank_rows(entries)
              if rank and (ends := _find_ends(entry))]  # fmt: skip
    so_far = [(entry, None, ends) for entry in entries
              if not entry.is_ranked and (ends := _find_ends(entry))]  # fmt: skip
    so_far.sort(key=lambda one: one[0].kind.cost(one[2][0]))
    every = [*ranked, *so_far]
    if not every:
        return None
    kind, values = entries[0].kind, [value for _, _, ends in every for value in ends]
    unit = kind.choose_unit(math.exp((math.log(min(values)) + math.log(max(values))) / 2))
    find_place, gridlines = make_axis(min(values), max(values), unit)
    rows = []
    for entry, rank, ends in every:
        value = format_value(kind, ends[0], unit) + (" so far" if entry.standing.so_far else "")
        is_wide, places = ends[1] < ends[2], tuple(map(find_place, ends))
        interval = format_ends(*ends, unit) if is_wide else _say_what_is_missing(entry)
        rows.append(RankedRow(entry, rank, colours[entry.id], ends, places, value, interval))
    return Ranking(gridlines, tuple(rows), _describe_lead([one[0] for one in ranked]), unit)


def _find_ends(entry: Entry) -> tuple[float, float, float] | None:
    """Find the number of a result and its interval; of one with too few runs, the mean so far."""
    if entry.main:
        main = entry.main
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
    times = format_ratio_interval(found, " times as fast as the second")
    return f"The first is {times}."


def make_axis(
    low: float, high: float, unit: Unit
) -> tuple[Callable[[float], float], tuple[Tick, ...]]:
    """Return what finds the place of a value, and lines at round values within the axis."""
    first, last = math.log(low), math.log(high)
    wider = max(0.0, (WIDEST - (last - first)) / 2)
    low, high = math.exp(first - wider), math.exp(last + wider)
    scale = Scale(low, high, True, MARGIN, 100 - MARGIN)

    def find_place(value: float) -> float:
        return scale(min(max(value, low), high))

    short = f" {unit.name}" if len(unit.name) <= len("min") else ""
    marked = pick_log_ticks(low * unit.factor, high * unit.factor, TICKS)
    lines = [Tick(find_place(one / unit.factor), f"{one:,.10g}{short}") for one in marked]
    return find_place, tuple(drop_close(lines, LETTER, 1.0, _find_anchor))


def _find_anchor(place: float) -> float:
    """Return the share of a label that stands to the left of its line."""
    return 0.0 if place < BESIDE else 1.0 if place > 100 - BESIDE else 0.5


@dataclass(frozen=True)
class Aggregate:
    """Ratios by system, for those with every benchmark; the reference has 1.

    ``why_not`` says why there are none.
    """

    reference: str
    benchmarks: tuple[str, ...]
    ratios: Mapping[Key, Ratio]
    why_not: str = ""


def get_key(entry: Entry) -> Key:
    """Return the row of the round that an entry belongs to."""
    return entry.system_id, entry.twin


def compute_aggregate(entries: Iterable[Entry], reference: str) -> Aggregate:
    """Return the aggregates of a table.

    ``reference`` is ``submitter/system``. An empty one stands for that of the reference
    implementation, the one with the most benchmarks.
    """
    levels = _collect_levels(entries)
    known = [key for key in levels if key[0] == reference]
    if not reference:
        known = [key for key in levels if key[0].startswith(f"{REFERENCE_SUBMITTER}/")]
    if not known:
        return Aggregate(reference, (), {}, f"no result of the reference {reference}".strip())
    key = min(known, key=lambda system: (-len(levels[system]), system))
    base = levels[key]
    benchmarks = tuple(sorted(base))
    if len(benchmarks) < BENCHMARKS_MIN:
        why = f"the reference {key[0]} has a score in one benchmark only"
        return Aggregate(key[0], benchmarks, {}, why)
    ratios = {
        system: mean_ratio([(own[name], base[name]) for name in benchmarks])
        for system, own in levels.items()
        if system != key and set(benchmarks) <= set(own)
    }
    ratios[key] = Ratio(1.0, 1.0, 1.0, ())  # by definition: what the others are measured by
    return Aggregate(key[0], benchmarks, ratios)


def _collect_levels(entries: Iterable[Entry]) -> Levels:
    levels: Levels = {}
    for entry in entries:
        if entry.is_ranked and entry.level is not None:
            levels.setdefault(get_key(entry), {})[entry.names.benchmark] = entry.level
    return levels


def plot_profiles(entries: Sequence[Entry]) -> Plot | None:
    """Plot the share of benchmarks that a system does within τ times the time of the fastest."""
    levels = _collect_levels(entries)
    benchmarks = sorted({name for own in levels.values() for name in own})
    if len(benchmarks) < BENCHMARKS_MIN or len(levels) < 2:
        return None
    best = {
        name: min(own[name].log_mean for own in levels.values() if name in own)
        for name in benchmarks
    }
    ratios = {
        key: sorted(math.exp(own[name].log_mean - best[name]) for name in own)
        for key, own in levels.items()
    }
    count, names = len(benchmarks), {get_key(entry): entry.name for entry in entries}

    def measure_area(key: Key) -> float:
        """Return the area under a profile over the largest one, AlgoPerf's score."""
        inside = [TAUS[-1] - value for value in ratios[key] if value <= TAUS[-1]]
        return math.fsum(inside) / count / (TAUS[-1] - TAUS[0])

    order = sorted(ratios, key=lambda key: (-measure_area(key), key))
    series = [
        Series(names[key], tuple(_make_steps(ratios[key], count)), number, mark="none")
        for number, key in enumerate(order[:COLOURS])
    ]
    rows = []
    for key in order:
        within = (sum(value <= tau * (1 + 1e-12) for value in ratios[key]) for tau in TAUS)
        shares = (f"{done / count:.2f}" for done in within)
        rows.append([names[key], *shares, f"{measure_area(key):.3f}"])
    return make_plot(
        "profiles",
        "Performance profiles",
        Axis("τ, times the time of the fastest", is_log=False),
        Axis("share of the benchmarks", from_zero=True),
        series,
        table=make_table(["system", *(f"τ = {tau:g}" for tau in TAUS), "area, 1 is best"], rows),
        note=f"The share of {count} benchmarks that each system finishes within τ times the time "
        f"of the fastest system, for the best {len(series)} of {len(order)} systems.",
    )


def _make_steps(ratios: Sequence[float], benchmarks: int) -> list[Point]:
    """Return the corners of the step function from τ = 1 on."""
    points, done = [(TAUS[0], 0.0)], 0
    for value in (value for value in ratios if value <= TAUS[-1]):
        points += [(value, done / benchmarks), (value, (done + 1) / benchmarks)]
        done += 1
    return [*points, (TAUS[-1], done / benchmarks)]
