"""One number for a system over all benchmarks, and performance profiles beside it.

The aggregate is the geometric mean of a system's speed-ups over the *reference result*, which is
fixed, so results of other competitors do not change it. A performance profile (E. D. Dolan, J. J.
Moré, Math. Program. 91 (2002) 201, as AlgoPerf uses it) compares each system with the fastest one,
so it changes when a faster system appears.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cepheid.compliance.score.comparison import Ratio, format_ratio, mean_ratio
from cepheid.compliance.score.levels import Level
from cepheid.leaderboard.plots.plot import COLOURS, Axis, Plot, Series, make_plot, make_table
from cepheid.leaderboard.rows.entry import Entry, Tab

REFERENCE_SUBMITTER = "cepheid"
BENCHMARKS_MIN = 2  # of one, the aggregate would be its speed-up
TAU_MAX = 4.0  # as far as AlgoPerf looks

Key = tuple[str, int]
"""A system and the number that tells it from others of its name."""


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


def compute_aggregate(tab: Tab, reference: str) -> Aggregate:
    """Return the aggregates of a table.

    ``reference`` is ``submitter/system``. An empty one stands for that of the reference
    implementation, the one with the most benchmarks.
    """
    levels = _collect_levels(tab.entries)
    key = _find_reference(levels, reference)
    if key is None:
        return Aggregate(reference, (), {}, f"no result of the reference {reference}".strip())
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


def _collect_levels(entries: Iterable[Entry]) -> dict[Key, dict[str, Level]]:
    levels: dict[Key, dict[str, Level]] = {}
    for entry in entries:
        if entry.is_ranked and entry.level is not None:
            levels.setdefault(get_key(entry), {})[entry.names.benchmark] = entry.level
    return levels


def _find_reference(levels: Mapping[Key, Mapping[str, Level]], reference: str) -> Key | None:
    wanted = reference or f"{REFERENCE_SUBMITTER}/"
    mine = [k for k in levels if k[0] == reference or (not reference and k[0].startswith(wanted))]
    return min(mine, key=lambda system: (-len(levels[system]), system), default=None)


def plot_profiles(tab: Tab) -> Plot | None:
    """Plot the share of benchmarks that a system does within τ times the time of the fastest."""
    levels = _collect_levels(tab.entries)
    benchmarks = sorted({name for own in levels.values() for name in own})
    if len(benchmarks) < BENCHMARKS_MIN or len(levels) < 2:
        return None
    best = {
        name: min(own[name].log_mean for own in levels.values() if name in own)
        for name in benchmarks
    }
    ratios = {
        system: sorted(math.exp(own[name].log_mean - best[name]) for name in own)
        for system, own in levels.items()
    }
    names = {get_key(entry): entry.name for entry in tab.entries}
    areas = {system: _compute_area(ratios[system], len(benchmarks)) for system in ratios}
    order = sorted(ratios, key=lambda system: (-areas[system], system))
    series = [
        Series(names[system], _make_steps(ratios[system], len(benchmarks)), number, mark="none")
        for number, system in enumerate(order[:COLOURS])
    ]
    taus = (1.0, 1.5, 2.0, 3.0, TAU_MAX)
    rows = (
        [
            names[system],
            *(f"{sum(r <= tau * (1 + 1e-12) for r in ratios[system]) / len(benchmarks):.2f}"
              for tau in taus),
            f"{areas[system]:.3f}",
        ]
        for system in order
    )  # fmt: skip
    return make_plot(
        "profiles",
        "Performance profiles",
        Axis("τ, times the time of the fastest", is_log=False),
        Axis("share of the benchmarks", from_zero=True),
        series,
        table=make_table(["system", *(f"τ = {tau:g}" for tau in taus), "area, 1 is best"], rows),
        description=(
            f"The share of {len(benchmarks)} benchmarks that each system finishes within τ times "
            f"the time of the fastest system, for the best {len(series)} of {len(order)} systems."
        ),
    )


def _make_steps(ratios: Sequence[float], benchmarks: int) -> tuple[tuple[float, float], ...]:
    """Return the corners of the step function from τ = 1 on."""
    points, done = [(1.0, 0.0)], 0
    for value in (value for value in ratios if value <= TAU_MAX):
        points += [(value, done / benchmarks), (value, (done + 1) / benchmarks)]
        done += 1
    return (*points, (TAU_MAX, done / benchmarks))


def _compute_area(ratios: Sequence[float], benchmarks: int) -> float:
    """Return the area under a profile from τ = 1 to 4 over the largest one, AlgoPerf's score."""
    inside = [TAU_MAX - value for value in ratios if value <= TAU_MAX]
    return math.fsum(inside) / benchmarks / (TAU_MAX - 1)


def format_ratio_interval(ratio: Ratio) -> str:
    """Return a ratio with its interval, as in ``1.80× (1.70–1.90)``; 1 is what others refer to."""
    if not ratio.runs:
        return "1 (reference)"
    if ratio.low is None or ratio.high is None:
        return f"{format_ratio(ratio.value)}×"
    return f"{format_ratio(ratio.value)}× ({format_ratio(ratio.low)}–{format_ratio(ratio.high)})"
