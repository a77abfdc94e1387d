"""Hash windows of numbers so that nearly equal ones get equal keys.

Each number falls into a cell of its logarithm. Two numbers that differ by much less than a cell
mostly share it. Where a boundary lies between them, another grid with other boundaries helps. A key
covers so many numbers that two independent series share none by chance.
"""

import math
from collections.abc import Iterator, Sequence

GRIDS = 3
ROUNDING = 1e-9  # of sums of short numbers
SMALLEST, LARGEST = 1e-30, 1e30


def list_cells(numbers: Sequence[float], cell: float) -> list[list[int]]:
    """Return for each grid the cell of the logarithm of each number, with its sign.

    0 has a cell of its own.
    """
    places = [math.log(abs(number)) / cell if number else 0.0 for number in numbers]
    signs = [(number > 0) - (number < 0) for number in numbers]
    return [
        [
            sign * (2 * math.floor(place + grid / GRIDS) + 1)
            for place, sign in zip(places, signs, strict=True)
        ]
        for grid in range(GRIDS)
    ]


def hash_windows(
    kind: int, numbers: Sequence[float], length: int, cell: float, starts: Sequence[int]
) -> Iterator[int]:
    """Yield a key of each window of ``length`` numbers that begins at one of ``starts``, by grid.

    Hashes of integers are the same in every process.
    """
    for grid, cells in enumerate(list_cells(numbers, cell)):
        for start in starts:
            if start + length <= len(cells):
                yield hash((kind, grid, *cells[start : start + length]))


def is_detailed(number: float) -> bool:
    """Return whether a number of a usual size has six significant digits or more."""
    if not SMALLEST < abs(number) < LARGEST:
        return False
    return abs(float(f"{number:.5g}") - number) > ROUNDING * abs(number)


def measure_spread(values: Sequence[float]) -> float:
    """Return the standard deviation of finite values."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
