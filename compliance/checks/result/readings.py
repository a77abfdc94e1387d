"""T23: readings of power that are those of another log, or that repeat themselves.

A copier adds an offset, multiplies by a factor, turns the course over or around, writes another
unit, rounds to whole watts, begins elsewhere or leaves out every second reading. Where the turning
points lie survives all that, so logs with gaps between them in common are compared. They are copies
if one is a linear function of the other to within the last digit, while an own measurement would be
off by its noise. Deterministic load is no noise: it changes slowly, or as steps, and the median of
second differences does not see it.

Of few or coarse readings, as whole watts are, each tells less, and no linear function is fitted: a
stretch that agrees exactly is a copy if independent noise would agree as long in fewer than one of
10,000 judgements. The chance that two such readings agree is taken from how often differences do.
"""

import math
import statistics
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, groupby, islice, pairwise, repeat, takewhile

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
CHANGING_SHARE_MIN = 0.75  # of readings, for each of them to tell enough by its value
RANKED = 8  # readings of which the order is a key,
SHORT = 64  # of as many readings at most: longer ones have turning points
EXACT = 0.05  # of the last digit: what a computer's arithmetic may leave
CHANCE_BITS = 14.0  # one of 10,000 judgements, of all pairs of readings together
BROADER_BITS = {1: 0.7, 2: 1.6, 4: 3.8}  # of differences of this order: of noise, and of rounding

Readings = Sequence[float]


def list_readings(power: PowerLog) -> "tuple[array[float], ...]":
    """Return the first readings of each sensor that differ from the one before.

    Where many do not, how often each is read in a row is listed like readings: it is noise as well.
    Where few do not, all readings are listed, too.
    """
    sensors, listed = power.sensors[:SENSORS_MAX], []
    most = READINGS_MAX // max(1, len(sensors))
    for watts in (of.watts[:most] for of in sensors):
        runs = [(reading, len(list(equal))) for reading, equal in groupby(watts)]
        listed.append(array("d", [reading for reading, _ in runs]))
        if len(runs) < CHANGING_SHARE_MIN * len(watts):
            listed.append(array("d", [times for _, times in runs]))
        elif len(runs) < len(watts):  # some are equal because they were rounded
            listed.append(array("d", watts))
    return tuple(listed)


def find_copies(logs: Sequence[Sequence[Readings]]) -> Iterator[tuple[int, int]]:
    """Yield the number of a log, and that of an earlier one with its readings, or its own."""
    owners: dict[int, list[tuple[int, Readings, int]]] = {}
    count = sum(len(readings) for sensors in logs for readings in sensors)
    needed = min(BITS_MIN, CHANCE_BITS + 2 * math.log2(max(1, count)))
    for number, sensors in enumerate(logs):
        copied, tries = None, Counter[int]()
        backwards = _list_keys([readings[::-1] for readings in sensors])
        keys = chain(zip(repeat(True), _list_keys(sensors)), zip(repeat(False), backwards))
        for is_forwards, (key, readings, at) in keys:
            known = owners.setdefault(key, [])
            for other, theirs, there in known:
                is_new = copied is None or (copied == number and other != number)
                is_apart = other != number or (theirs is readings and at - there > LAGS_MAX)
                may_try = tries[other] < TRIES_MAX and tries.total() < TRIES_TOGETHER_MAX
                if is_new and is_apart and may_try:
                    tries[other] += 1
                    places = readings, at, theirs, there
                    is_copy = _is_equal(*places, needed) or _is_copy(*places, needed)
                    copied = other if is_copy else copied
            if is_forwards and len(known) < OWNERS_MAX:
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
        for start in range(len(readings) - RANKED + 1 if len(readings) <= SHORT else 0):
            window = readings[start : start + RANKED]
            order = sorted(set(window))
            if len(order) > 2:  # what goes up and down tells nothing
                yield hash(tuple(map(order.index, window))), readings, start


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


def _is_copy(ours: Readings, at: int, theirs: Readings, there: int, needed: float) -> bool:
    """Return True if readings around two places agree but for offset, factor and rounding."""
    before = min(at, there, COMPARED_MAX // 2)
    count = before + min(len(ours) - at, len(theirs) - there, COMPARED_MAX - before)
    ours = ours[at - before : at - before + count]
    theirs = theirs[there - before : there - before + count]
    low, high = (theirs.index(edge) for edge in (min(theirs), max(theirs)))
    factor = (ours[high] - ours[low]) / (theirs[high] - theirs[low])
    if count < COMPARED_MIN or abs(factor) <= FLAT:
        return False
    tolerance = ROUNDED * max(_find_step(ours), abs(factor) * _find_step(theirs))
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
    is_alike = agreeing >= (1 - CHANGED_SHARE_MAX) * count and bits >= BITS_MIN
    return is_alike and _count_bits(ours) >= needed


def _is_equal(ours: Readings, at: int, theirs: Readings, there: int, needed: float) -> bool:
    """Return True if readings around two places are equal but for offset and factor, for long."""
    near = theirs[there : there + RANKED]
    low, high = (near.index(edge) for edge in (min(near), max(near)))
    if len(ours) < at + len(near) or low == high:
        return False
    factor = (ours[at + high] - ours[at + low]) / (near[high] - near[low])
    offset, step = ours[at + low] - factor * near[low], _find_step(near)
    if factor <= FLAT:
        return False

    def count(pairs: Iterator[tuple[float, float]]) -> int:
        alike = (abs(own - factor * its - offset) <= EXACT * factor * step for own, its in pairs)
        return sum(1 for _ in takewhile(bool, islice(alike, COMPARED_MAX)))

    after = count(zip(ours[at:], theirs[there:], strict=False))
    if after < len(near):
        return False
    before = count(zip(reversed(ours[:at]), reversed(theirs[:there]), strict=False))
    stretch = theirs[there - before : there + after]
    return len(stretch) >= COMPARED_MIN and _count_bits(stretch) >= needed


def _count_bits(readings: Readings) -> float:
    """Return of how many bits the chance is that the noise of another measurement agrees.

    Two readings of it are as probably equal as two differences between readings, but for how much
    broader those are. A load that is smooth, or that repeats itself, has equal differences.
    """
    step, estimates = _find_step(readings), []
    differences = whole = [round(watts / step) for watts in readings]
    for order in range(1, max(BROADER_BITS) + 1):
        differences = [after - before for before, after in pairwise(differences)]
        if order in BROADER_BITS:
            estimates.append(_compare_pairs(differences) - BROADER_BITS[order])
    for lag in range(2, min(LAGS_MAX, len(whole) // 2) + 1):
        apart = [after - before for before, after in zip(whole, whole[lag:], strict=False)]
        estimates.append(_compare_pairs(apart) - BROADER_BITS[1])
    return len(readings) * min(estimates)


def _compare_pairs(numbers: Sequence[int]) -> float:
    """Return of how many bits the chance is that two of these numbers are equal, or one more."""
    equal = sum(math.comb(times, 2) for times in Counter(numbers).values())
    return math.log2((math.comb(len(numbers), 2) + 1) / (equal + 1))


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
