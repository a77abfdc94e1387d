"""T19: two runs are as far from each other as two seeds are, however a copy was changed.

What is compared are the steps of the metrics from one evaluation to the next, in units of how much
they vary between the seeds of the evidence (``benchmarks/<name>/evidence.json``), so that an offset
changes nothing. A distance that two seeds have in one of 10,000 pairs, or in one of a hundred
judgements of everything, is reported: the evidence shows in how many directions seeds differ, and
how much. The mean of runs of one result is compared like a run. Few evaluations tell nothing.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise, product
from operator import mul

from cepheid.rules import definition as definitions
from cepheid.rules import evidence

EVALUATIONS = 8  # the first ones; a run with fewer is not compared
FAR = 1e6  # spreads; more is no further, so that no square of what somebody wrote overflows
SEEDS_MIN = 5  # of the evidence
FALSE_ALARMS_MAX = 1e-4  # of a pair of seeds
EXPECTED_MAX = 0.01  # false alarms among everything that is judged together
RUNS_USUAL = 5  # of a result
PROJECTIONS = 4  # on the axes of most variation
CELLS = 2**32  # of a projection, more than any run is apart
TURNS = 8  # of the iteration that finds an axis
SAMPLE = 200  # runs that the axes are found from
REACH = 10.0  # beyond the steps of most, in units of how much these differ
PIVOT_MIN = 1e-3  # of directions in which seeds do not differ

Course = Sequence[Mapping[str, float]]
Steps = Sequence[float]


@dataclass(frozen=True)
class Scale:
    """How much the steps of each metric vary between seeds.

    ``volumes`` holds for each number of directions how much they vary in these together: the
    logarithm of the determinant of their covariance.
    """

    spreads: tuple[tuple[str, tuple[float, ...]], ...]
    volumes: tuple[float, ...] = ()

    def measure(self, course: Course) -> Steps | None:
        """Return the steps of a run in units of their spread, or None if some are missing."""
        steps: list[float] = []
        for name, spreads in self.spreads:
            moved = _list_steps(course, name)
            steps += [step / spread for step, spread in zip(moved, spreads, strict=False)]
        whole = len(self.spreads) * (EVALUATIONS - 1)
        is_known = len(steps) == whole and all(map(math.isfinite, steps))
        return tuple(max(-FAR, min(FAR, step)) for step in steps) if is_known else None

    def find_limit(self, comparisons: int) -> float:
        """Return the squared distance below which two runs are too close, among so many pairs.

        In any r directions of determinant v, two seeds are that close with a chance of at most
        (square / 4)**(r / 2) / gamma(r / 2 + 1) / sqrt(v): the widest limit of those is good.
        """
        chance = math.log(min(FALSE_ALARMS_MAX, EXPECTED_MAX / max(1, comparisons)))
        halves = ((number / 2, volume) for number, volume in enumerate(self.volumes, 1))
        return 4 * math.exp(
            max((chance + math.lgamma(half + 1) + volume / 2) / half for half, volume in halves)
        )


@cache
def load_scale(name: str, scale: str) -> Scale | None:
    """Return the scale of a benchmark by its evidence; None where that shows too little."""
    shown = evidence.load(definitions.load(name, scale))
    correct = shown.correct if shown else ()
    courses = [[metrics for _, metrics in curve.evaluations] for curve in correct]
    return make_scale([course for course in courses if len(course) >= EVALUATIONS])


def make_scale(courses: Sequence[Course]) -> Scale | None:
    """Return the scale that the courses of several seeds show."""
    if len(courses) < SEEDS_MIN:
        return None
    spreads = []
    for name in courses[0][0]:
        moved = [_list_steps(course, name) for course in courses]
        spread = tuple(statistics.pstdev(at) for at in zip(*moved, strict=True))
        if all(each > 0 and math.isfinite(each) for each in spread):
            spreads.append((name, spread))
    scale = Scale(tuple(spreads))
    measured = [steps for course in courses if (steps := scale.measure(course))]
    return replace(scale, volumes=tuple(_measure_volumes(measured))) if spreads else None


def _list_steps(course: Course, name: str) -> list[float]:
    values = [point.get(name, math.nan) for point in course[:EVALUATIONS]]
    return [b - a for a, b in pairwise(values)]


def _measure_volumes(measured: Sequence[Steps]) -> Iterator[float]:
    """Yield the logarithm of the determinant in the directions of one seed, two seeds, and so on.

    It is that of the covariance between seeds, by Cholesky's method with the largest pivot first.
    """
    count = len(measured)
    means = [statistics.fmean(at) for at in zip(*measured, strict=True)]
    apart = [[step - mean for step, mean in zip(of, means, strict=True)] for of in measured]
    left = [[multiply(a, b) / (count - 1) for b in apart] for a in apart]
    volume = 0.0
    for _ in range(count - 1):
        at = max(range(count), key=lambda number: left[number][number])
        pivot = left[at][at]
        if pivot < PIVOT_MIN:
            return
        volume += math.log(pivot)
        yield volume
        column = [row[at] / pivot for row in left]
        left = [
            [value - column[i] * left[at][j] for j, value in enumerate(row)]
            for i, row in enumerate(left)
        ]


@dataclass(frozen=True)
class Close:
    """A run, and the one that it is too close to, or those whose mean or mixture that is."""

    run: int
    others: tuple[int, ...]


def clip_steps(courses: Sequence[Steps]) -> list[Steps]:
    """Return courses with each step clipped to around those of most, so that none hides others.

    A run that diverged on purpose would decide where the axes of most variation are. No two runs
    are farther from each other than before.
    """
    clipped = []
    for at in zip(*courses, strict=True):
        some = sorted(at[:: -(-len(at) // SAMPLE)])
        cut = max(len(some) // 10, len(some) > 4)
        low, high = some[cut], some[-1 - cut]
        least, most = low - REACH * (high - low), high + REACH * (high - low)
        clipped.append([max(least, min(most, step)) for step in at])
    return list(zip(*clipped, strict=True))


def find_places(courses: Sequence[Steps], count: int) -> list[tuple[float, ...]]:
    """Return where each run lies on some axes of unit length, those on which runs differ most."""
    axes = _find_axes(courses[:: -(-len(courses) // SAMPLE)], find_middle(courses), count)
    return [tuple(multiply(course, axis) for axis in axes) for course in courses]


def multiply(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the scalar product."""
    return float(sum(map(mul, one, other)))


def _find_axes(
    courses: Sequence[Steps], middle: Sequence[float], count: int
) -> list[Sequence[float]]:
    """Return some directions of unit length in which runs differ most, by power iteration."""
    left = [[a - b for a, b in zip(course, middle, strict=True)] for course in courses]
    axes: list[Sequence[float]] = []
    for _ in range(min(count, len(middle))):
        axis: Sequence[float] = max(left, key=lambda each: multiply(each, each))
        for _ in range(TURNS):
            size = math.hypot(*axis) or 1.0
            unit = [value / size for value in axis]
            shares = [multiply(each, unit) for each in left]
            axis = [multiply(shares, at) for at in zip(*left, strict=True)]
        axes.append(unit)
        left = [
            [value - share * at for value, at in zip(each, unit, strict=True)]
            for each, share in zip(left, shares, strict=True)
        ]
    return axes


def find_close(courses: Sequence[Steps], results: Sequence[int], scale: Scale) -> Iterator[Close]:
    """Yield the runs that are too close to another one, or to the mean of some runs of a result.

    ``results`` has the number of each run's result. Only neighbours in a grid of a few steps are
    compared: what is close lies in the same cell or beside it.
    """
    by_result: defaultdict[int, list[int]] = defaultdict(list)
    for number, result in enumerate(results):
        by_result[result].append(number)
    groups = [group for runs in by_result.values() for group in _list_groups(runs)]
    count = len(courses)
    cell = math.sqrt(scale.find_limit(count * (count - 1) // 2 + count * len(groups)))
    places = find_places(clip_steps(courses), PROJECTIONS) if courses else []
    bases = [CELLS**at for at in range(PROJECTIONS)]
    moves = [sum(map(mul, bases, move)) for move in product((-1, 0, 1), repeat=PROJECTIONS)]

    def locate(place: Sequence[float]) -> int:
        return sum(math.floor(at / cell) * base for at, base in zip(place, bases, strict=False))

    grid: defaultdict[int, list[int]] = defaultdict(list)

    def find_neighbours(place: Sequence[float]) -> Iterator[int]:
        here = locate(place)
        for move in moves:
            yield from grid.get(here + move, ())

    for number, place in enumerate(places):
        for other in find_neighbours(place):
            if math.dist(courses[number], courses[other]) <= cell:
                yield Close(number, (other,))
        grid[locate(place)].append(number)
    for group in groups:
        limit = cell * math.sqrt((1 + 1 / len(group)) / 2)  # a mean varies less than a run
        middle = find_middle([courses[run] for run in group])
        for other in find_neighbours(find_middle([places[run] for run in group])):
            if other not in group and math.dist(middle, courses[other]) <= limit:
                yield Close(other, group)


def _list_groups(runs: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield runs of a result of which somebody could take the mean; of many runs, not all."""
    for size in range(2, len(runs) + 1):
        if len(runs) <= RUNS_USUAL or size == 2 or size >= len(runs) - 1:
            yield from combinations(runs, size)


def find_middle(courses: Sequence[Steps]) -> tuple[float, ...]:
    """Return the point in the middle of some."""
    count = len(courses)
    return tuple([sum(at) / count for at in zip(*courses, strict=True)])


def find_repeated(keys: Iterable[int]) -> set[int]:
    """Find the keys that come twice, and few others: a bit for a key instead of a hundred bytes."""
    marks, found = bytearray(2**23), set()
    for key in keys:
        place, bit = key >> 3 & 2**23 - 1, 1 << (key & 7)
        if marks[place] & bit:
            found.add(key)
        marks[place] |= bit
    return found
