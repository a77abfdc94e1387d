"""T23: readings of power that are those of another log, or that repeat themselves.

A copier adds an offset, multiplies by a factor, writes another unit, begins elsewhere or leaves out
every second reading. Where the turning points lie survives all that, so logs with gaps between them
in common are compared. They are copies if one is a linear function of the other to within the last
digit, while an own measurement would be off by its noise. Deterministic load is no noise: it
changes slowly, or as steps, and the median of second differences does not see it.
"""

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from cepheid.compliance.read.powerlog import PowerLog

READINGS_MAX = 512  # of all sensors of a log
SENSORS_MAX = 16
NEIGHBOURS = 2  # on each side of a turning point
GAPS = 6  # in a key
OWNERS_MAX = 4  # of one key: the first ones that had it
TRIES_MAX, TRIES_TOGETHER_MAX = 32, 512  # to compare a log with another one, and with all
COMPARED_MAX = 64  # readings
COMPARED_MIN = 12
DECIMALS_MAX = 6
ROUNDED = 0.65  # of the last digit; the line that is fitted is off by a little
BITS_MIN = 50.0
CHANGED_SHARE_MAX = 0.125  # of copied readings
CHANGED_BITS = 0.55  # what a reading tells less, because any such share may have been changed
LAGS_MAX = 32  # load that repeats itself after so many readings is no noise
FLAT = 1e-9

Readings = Sequence[float]


def list_readings(power: PowerLog) -> "tuple[array[float], ...]":
    """Return the first readings of each sensor that differ from the one before."""
    sensors = power.sensors[:SENSORS_MAX]
    most = READINGS_MAX // max(1, len(sensors))
    return tuple(
        array("d", [w for n, w in enumerate(of.watts[:most]) if not n or w != of.watts[n - 1]])
        for of in sensors
    )


def find_copies(logs: Sequence[Sequence[Readings]]) -> Iterator[tuple[int, int]]:
    """Yield the number of a log, and that of an earlier one with its readings, or its own."""
    owners: dict[int, list[tuple[int, Readings, int]]] = {}
    for number, sensors in enumerate(logs):
        copied, tries = None, Counter[int]()
        for key, readings, at in _list_keys(sensors):
            known = owners.setdefault(key, [])
            for other, theirs, there in known:
                is_new = copied is None or (copied == number and other != number)
                is_apart = other != number or (theirs is readings and at - there > LAGS_MAX)
                may_try = tries[other] < TRIES_MAX and tries.total() < TRIES_TOGETHER_MAX
                if is_new and is_apart and may_try:
                    tries[other] += 1
                    copied = other if _is_copy(readings, at, theirs, there) else copied
            if len(known) < OWNERS_MAX:
                known.append((number, readings, at))
        if copied is not None:
            yield number, copied


def _list_keys(sensors: Sequence[Readings]) -> Iterator[tuple[int, Readings, int]]:
    """Yield keys of all readings and of every second one, and where they begin."""
    for readings in sensors:
        for view in (readings, readings[::2], readings[1::2]):
            turns = _find_turns(view)
            for first in range(len(turns) - GAPS):
                start = turns[first]
                gaps = (turn - start for turn in turns[first + 1 : first + GAPS + 1])
                yield hash(tuple(gaps)), view, start


def _find_turns(readings: Readings) -> list[int]:
    """Return where readings are above all of their neighbours, or below them."""
    turns = []
    for at in range(NEIGHBOURS, len(readings) - NEIGHBOURS):
        here = readings[at]
        around = readings[at - NEIGHBOURS : at + NEIGHBOURS + 1]
        is_turn = here == max(around) or here == min(around)
        if is_turn and around.count(here) == 1:
            turns.append(at)
    return turns


def _is_copy(ours: Readings, at: int, theirs: Readings, there: int) -> bool:
    """Return True if readings around two places agree but for offset, factor and rounding."""
    before = min(at, there, COMPARED_MAX // 2)
    count = before + min(len(ours) - at, len(theirs) - there, COMPARED_MAX - before)
    ours = ours[at - before : at - before + count]
    theirs = theirs[there - before : there - before + count]
    low, high = (theirs.index(edge) for edge in (min(theirs), max(theirs)))
    factor = (ours[high] - ours[low]) / (theirs[high] - theirs[low])
    if count < COMPARED_MIN or factor <= FLAT:
        return False
    tolerance = ROUNDED * max(_find_step(ours), factor * _find_step(theirs))
    offset, allowed = ours[low] - factor * theirs[low], math.floor(CHANGED_SHARE_MAX * count)
    pairs = []
    for pair in zip(theirs, ours, strict=True):
        if abs(pair[1] - factor * pair[0] - offset) <= 5 * tolerance:  # both ends are rounded
            pairs.append(pair)
        elif (allowed := allowed - 1) < 0:
            return False
    slope, offset = statistics.linear_regression(*zip(*pairs, strict=True))
    agreeing = sum(abs(mine - slope * its - offset) <= tolerance for its, mine in pairs)
    noise = _estimate_noise(ours, min(LAGS_MAX, count // 2))
    bits = agreeing * math.log2(max(1.0, 1.77 * noise / tolerance)) - CHANGED_BITS * count
    return agreeing >= (1 - CHANGED_SHARE_MAX) * count and bits >= BITS_MIN


def _estimate_noise(watts: Readings, lags: int) -> float:
    """Return the standard deviation of what neither a smooth nor a periodic load explains."""
    count = len(watts)
    fourth = [
        watts[n] - 4 * watts[n - 1] + 6 * watts[n - 2] - 4 * watts[n - 3] + watts[n - 4]
        for n in range(4, count)
    ]
    estimates = [statistics.median(map(abs, fourth)) / 5.64]
    for lag in range(1, lags + 1):
        apart = statistics.median(abs(watts[n] - watts[n - lag]) for n in range(lag, count))
        estimates.append(apart / 0.954)
    return min(estimates)


def _find_step(readings: Readings) -> float:
    """Return the unit of the last digit that readings have."""
    for decimals in range(DECIMALS_MAX):
        if all(abs(round(watts, decimals) - watts) < FLAT for watts in readings):
            return 10.0**-decimals
    return 10.0**-DECIMALS_MAX
