"""T19: no run lies between two others, as a mixture of them with fixed weights does.

The chance that a third seed lies within a radius of the line from one seed to another is at most
the greatest density of seeds times the volume of that tube. The radius at which one of a hundred
judgements of everything would have a false alarm is the limit; so it follows from the evidence.

Few runs are compared in pure Python, many by ``lines`` with NumPy: completely, but for those near
one end of a line, which ``lines`` finds up to a smaller radius. Where NumPy is absent, those of
many runs that lie nearest to the middle of all are tried: a mixture lies nearer to it than a run.
"""

import math
import statistics
from bisect import bisect_left, bisect_right
from cmath import phase
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice

from cepheid.compliance.checks.alike.near import (
    EXPECTED_MAX,
    FALSE_ALARMS_MAX,
    Close,
    Scale,
    Steps,
    clip_steps,
    find_middle,
    find_places,
    multiply,
)

COUNT_MAX = 150  # of runs without NumPy, whose import takes nearly as long as these
COMPARISONS_MAX = 160_000  # of a run with another one, without NumPy
OFFSETS_MAX = 250_000  # more are for runs that were made to cost time
SHARP = 12.0  # times the radius: what is nearer in a plane has no direction there,
BLURRED = 10  # but one of so many neighbours at most

Ray = tuple[complex, float, float, float, int]
"""The way to another run in one plane and in another one, its length there, and which run it is."""


def find_mixtures(courses: Sequence[Steps], scale: Scale) -> Iterator[Close]:
    """Yield each run that lies between two others, and these two."""
    count, directions = len(courses), len(scale.volumes)
    if count < 3 or directions < 2:
        return
    clipped = clip_steps(courses)
    middle = find_middle(clipped)
    usual = 2 * statistics.median(math.dist(course, middle) for course in clipped)
    radius = find_radius(scale, count * (count - 1) * (count - 2) // 2, usual)
    if count > COUNT_MAX and find_spec("numpy"):
        from cepheid.compliance.checks.alike.lines import find_lines  # here: few need NumPy

        found: Iterator[tuple[int, int, int]] = find_lines(clipped, radius, directions)
    else:
        found = _try_runs(find_places(clipped, directions), radius)
    for run, one, other in dict.fromkeys(islice(found, OFFSETS_MAX)):
        if measure_offset(courses[run], courses[one], courses[other]) <= radius:
            yield Close(run, (one, other))


def _try_runs(places: Sequence[Steps], radius: float) -> Iterator[tuple[int, int, int]]:
    """Yield runs, and two others in opposite directions from them."""
    middle = find_middle(places)
    tried = sorted(range(len(places)), key=lambda run: math.dist(places[run], middle))
    flat = [(*place, 0.0, 0.0)[:4] for place in places]
    for run in tried[: COMPARISONS_MAX // len(places)]:
        rays = [_look(flat[run], there, at) for at, there in enumerate(flat) if at != run]
        for one, other in _find_opposite(rays, radius):
            yield run, one, other


def find_radius(scale: Scale, triples: int, length: float) -> float:
    """Return how far from a line of a length a run is in all but one of so many honest triples.

    In r directions of determinant v the density of seeds is at most (2 π)**(-r / 2) / sqrt(v).
    """
    chance = min(FALSE_ALARMS_MAX, EXPECTED_MAX / triples)
    return max(
        _solve(directions, volume, chance, length)
        for directions, volume in enumerate(scale.volumes, 1)
        if directions > 1
    )


def _solve(directions: int, volume: float, chance: float, length: float) -> float:
    """Return the radius of the tube, with a ball for its ends, that has a chance."""
    density = -0.5 * directions * math.log(2 * math.pi) - volume / 2
    lowest, highest = -60.0, 10.0  # logarithms
    for _ in range(60):
        radius = math.exp((lowest + highest) / 2)
        tube = length * _measure_ball(directions - 1, radius) + _measure_ball(directions, radius)
        if density + math.log(tube) > math.log(chance):
            highest = math.log(radius)
        else:
            lowest = math.log(radius)
    return math.exp(lowest)


def _measure_ball(directions: int, radius: float) -> float:
    half = directions / 2
    return max(1e-300, float(math.pi**half / math.gamma(half + 1) * radius**directions))


def _look(here: Steps, there: Steps, other: int) -> Ray:
    x, y = there[2] - here[2], there[3] - here[3]
    return complex(there[0] - here[0], there[1] - here[1]), x, y, math.hypot(x, y), other


def _find_opposite(rays: list[Ray], radius: float) -> Iterator[tuple[int, int]]:
    """Yield pairs of runs in opposite directions, so far as two planes show.

    In the first plane, those in the window of angles around the opposite one are compared. A run
    that is too near to have a direction there is compared with all.
    """
    if not rays:
        return
    sizes = sorted(abs(ray[0]) for ray in rays)
    least = max(2 * radius, min(SHARP * radius, sizes[len(sizes) // BLURRED]))
    sharp = sorted((ray for ray in rays if abs(ray[0]) >= least), key=lambda ray: phase(ray[0]))
    blurred = [ray for ray in rays if abs(ray[0]) < least][: 1 + len(rays) // BLURRED]
    around, angles = sharp * 2, [phase(ray[0]) for ray in sharp]
    angles += [angle + 2 * math.pi for angle in angles]
    pairs = [(ray, [*around[: len(sharp)], *blurred[:at]]) for at, ray in enumerate(blurred)]
    for angle, ray in zip(angles, sharp, strict=False):
        breadth = 1.05 * radius * (1 / abs(ray[0]) + 1 / least)  # asin(x) < 1.05 x here
        if angle > breadth:
            break  # the other one of the pair finds it
        first = bisect_left(angles, angle + math.pi - breadth)
        pairs.append((ray, around[first : bisect_right(angles, angle + math.pi + breadth)]))
    for (_, x, y, size, one), facing in pairs:
        for _, there_x, there_y, there_size, other in facing:
            if abs(x * there_y - y * there_x) <= radius * (size + there_size):
                yield one, other


def measure_offset(run: Steps, one: Steps, other: Steps) -> float:
    """Return how far a run is from the line between two others; infinite beyond their ends."""
    there, way = ([a - b for a, b in zip(end, one, strict=True)] for end in (run, other))
    along, square = multiply(there, way), multiply(way, way)
    if not 0 < along < square:
        return math.inf
    return math.sqrt(max(0.0, multiply(there, there) - along**2 / square))
