"""Points that lie between two others in many dimensions, all of them, of ten thousand in seconds.

Seen from one of two points, the other one and whatever lies between them are in one direction. From
each point, those beyond it on the longest axis are sorted by their direction: cells of a grid on
some axes, and within a cell the place on the longest axis. Neighbours in that order are compared. A
point near the lower walls of its cell is also in the cells beyond them, so that two points in one
direction share a cell wherever its walls are.

The angle that is allowed for is the widest of a few at which the pairs are affordable. Where it is
twice the radius over the distance, all points in the farther half of the way are found up to the
whole radius. The offset of others turns their direction more, so that fewer of them are found.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # not part of the core
    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.uint64]
    Floats = NDArray[np.floating]

AXES = 8  # the first one for places within a cell, the others for cells
EXACT = 1e-3  # of a usual distance: the least radius that single precision can tell
TURNS = (8.0, 6.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.75, 0.5)  # allowed for, in radii over the distance
TRIED = 25  # points that are looked from to choose one
CELL = 7.0  # in units of the angle that is allowed for at a usual distance
PLACE_BITS, POINT_BITS = 20, 20  # of a key; its first bits are those of the cell
AFFORDABLE = 10_000_000  # pairs to compare
FROM_POINT_MAX = 20_000  # more are for points that were made to cost time
TOGETHER_MAX = 30_000_000
AT_ONCE = 20_000


def find_lines(
    points: Sequence[Sequence[float]], radius: float, directions: int
) -> Iterator[tuple[int, int, int]]:
    """Yield a point near the line between two others, and these two.

    Only ``directions`` axes of most variation are looked at, so that some points are too far off.
    """
    import numpy as np

    places = _find_places(np.asarray(points), directions)
    order = np.argsort(-places[:, 0])
    places = places[order]
    usual = float(np.sqrt(2 * np.mean(np.sum(places**2, axis=1)))) or 1.0
    if radius > EXACT * usual:
        places = places.astype(np.float32)
    rounding = 4 * float(np.finfo(places.dtype).eps) * float(np.abs(places).max() or 1.0)
    turn = _choose_turn(places, (radius + rounding) / usual, usual)
    pending: list[tuple[int, Integers, Integers]] = []
    size = total = 0
    for seen_from, one, other in _find_neighbours(places, turn, usual, range(2, len(places))):
        pending.append((seen_from, one, other))
        size += len(one)
        if size > AT_ONCE:
            yield from _compare(places, pending, radius + rounding, order)
            total, size, pending = total + size, 0, []
            if total > TOGETHER_MAX:
                return
    yield from _compare(places, pending, radius + rounding, order)


def _find_places(points: "Floats", directions: int) -> "Floats":
    """Return where points lie on the axes of most variation, the longest one first."""
    import numpy as np

    apart = points - points.mean(axis=0)
    _, axes = np.linalg.eigh(apart.T @ apart)
    return np.ascontiguousarray(apart @ axes[:, ::-1][:, :directions])


def _choose_turn(places: "Floats", least: float, usual: float) -> float:
    """Return the angle to allow for; ``least`` is that of the radius at the usual distance."""
    apart = 1 + len(places) // TRIED
    some = range(2 + apart // 2, len(places), apart)
    for turn in TURNS:
        pairs = sum(len(one) for _, one, _ in _find_neighbours(places, turn * least, usual, some))
        if pairs * apart <= AFFORDABLE:
            break
    return turn * least


def _find_neighbours(
    places: "Floats", turn: float, usual: float, views: "Iterable[int]"
) -> "Iterator[tuple[int, Integers, Integers]]":
    """Yield each view, a point, and pairs within an angle (at the usual distance) from it."""
    import numpy as np

    count, axes = len(places), min(AXES, places.shape[1])
    columns = np.ascontiguousarray(places.T)
    squares = np.sum(columns**2, axis=0)
    cell = max(1e-6, CELL * turn)
    sizes = np.full((axes, 1), 1 / cell, places.dtype)
    sizes[0] = 2**PLACE_BITS / 2.1  # a unit vector reaches from -1 to 1
    origins = (1.04 * sizes).astype(places.dtype)
    kept, point_bits = np.uint64(PLACE_BITS), np.uint64(POINT_BITS)
    window = np.uint64(2 + int(min(2.1, 3 * turn) * sizes[0, 0])) << point_bits
    chance = np.random.default_rng(axes)  # for a hash of cells, which need not be secret
    factors = chance.integers(2**20, 2**30, axes - 1, dtype=np.int32)[:, None] | 1
    steps = factors.astype(np.uint64)[:, 0] << (kept + point_bits)
    names = np.arange(count, dtype=np.uint64)
    keys = np.empty(count * 2 ** (axes - 1), np.uint64)
    walls = np.empty(len(keys), np.uint8)
    for at in views:
        rays = columns[:axes, :at] - columns[:axes, at : at + 1]
        near = columns[:, at] @ columns[:, :at]
        near *= -2
        near += squares[:at]
        near += squares[at]
        np.maximum(near, 1e-6 * usual**2, out=near)
        np.sqrt(near, out=near)
        np.reciprocal(near, out=near)
        rays *= near
        rays *= sizes
        rays += origins
        cells = rays.astype(np.int32)
        near *= turn * usual / cell
        rays -= cells
        is_at_wall = (rays[1:] < near).view(np.uint8)
        hashes = cells[1:]
        hashes *= factors
        here = keys[:at]
        here[:] = np.add.reduce(hashes, axis=0, dtype=np.int32)
        here <<= kept
        here += cells[0].astype(np.uint64)
        here <<= point_bits
        here |= names[:at]
        walls[:at] = 0
        stop = at
        for axis, at_wall in enumerate(is_at_wall):
            at_wall <<= axis
            walls[:at] |= at_wall
        for axis, step in enumerate(steps):
            crossing = np.flatnonzero(walls[:stop] & (1 << axis))
            end = stop + len(crossing)
            np.subtract(keys[crossing], step, out=keys[stop:end])
            walls[stop:end] = walls[crossing]
            stop = end
        keys[:stop].sort()
        yield from ((at, *pair) for pair in _pair(keys[:stop], window))


def _pair(keys: "Integers", window: "np.uint64") -> "Iterator[tuple[Integers, Integers]]":
    """Yield the points of sorted keys that differ by less than a window."""
    import numpy as np

    names, left = np.uint64(2**POINT_BITS - 1), FROM_POINT_MAX
    first, apart = np.flatnonzero(keys[1:] - keys[:-1] <= window)[:left], 1
    while len(first) and left > 0:
        yield keys[first] & names, keys[first + apart] & names
        left -= len(first)
        apart += 1
        first = first[: np.searchsorted(first, len(keys) - apart)][: max(0, left)]
        first = first[keys[first + apart] - keys[first] <= window]


def _compare(
    places: "Floats",
    pending: "Sequence[tuple[int, Integers, Integers]]",
    radius: float,
    order: "NDArray[np.intp]",
) -> Iterator[tuple[int, int, int]]:
    """Yield the pairs of which the nearer point is within a radius of the way to the other one."""
    import numpy as np

    if not pending:
        return
    sizes = [len(one) for _, one, _ in pending]
    seen_from = np.repeat([at for at, _, _ in pending], sizes)
    one = np.concatenate([each for _, each, _ in pending]).astype(np.intp)
    other = np.concatenate([each for _, _, each in pending]).astype(np.intp)
    here = places[seen_from]
    ray, long = places[one] - here, places[other] - here
    square, longest = np.sum(ray * ray, axis=1), np.sum(long * long, axis=1)
    along = np.sum(ray * long, axis=1)
    most = np.maximum(np.maximum(square, longest), np.finfo(places.dtype).tiny)
    offsets = np.minimum(square, longest) - along * along / most
    is_nearer = square < longest
    middle, end = np.where(is_nearer, one, other), np.where(is_nearer, other, one)
    close = np.flatnonzero((offsets <= radius * radius * (1 + 1e-4)) & (along > 0))
    yield from zip(*(order[each[close]].tolist() for each in (middle, seen_from, end)), strict=True)
