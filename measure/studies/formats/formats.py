"""Measure how fast a disk gives images, by how they are packed (``packing``)."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.measure.studies.formats.packing import Packing, drop_from_caches
from cepheid.rules.errors import UserError

MEAN_KB, SHORTEST_KB, LONGEST_KB = 110, 10, 600
LOG_SPREAD = 0.6  # of the lengths, as of ImageNet's files
SPARE_BYTES = 2**28


@dataclass
class ReadingRates:
    """Contents per second of one way to pack them, a number for each round."""

    name: str
    files: int = 0
    cold_in_order: list[float] = field(default_factory=list)
    cold_shuffled: list[float] = field(default_factory=list)  # stays empty where it is impossible
    warm_in_order: list[float] = field(default_factory=list)


def make_contents(count: int) -> list[bytes]:
    """Return random bytes whose lengths are distributed like ImageNet's files."""
    random = np.random.default_rng(0)
    median_kb = np.log(MEAN_KB) - 0.5 * LOG_SPREAD**2
    sizes = random.lognormal(median_kb, LOG_SPREAD, size=count) * 1000
    sizes = np.clip(sizes, SHORTEST_KB * 1000, LONGEST_KB * 1000)
    return [random.bytes(int(size)) for size in sizes]


def check_space(folder: Path, needed: int) -> None:
    """Raise UserError if the disk of ``folder`` has too little room for so many bytes."""
    free = shutil.disk_usage(folder).free
    needed = 2 * needed + SPARE_BYTES  # LMDB rounds each content up to whole pages
    if free < needed:
        raise UserError(
            f"{folder}: {free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB needed; ask for fewer "
            "--files, or give --data on another disk"
        )


def measure_reading(
    packing: Packing, contents: Sequence[bytes], data_root: Path, rounds: int
) -> ReadingRates:
    """Pack contents in a temporary folder and read them again and again.

    A cold measurement begins by dropping the files from the caches of the operating system.
    """
    order = [int(place) for place in np.random.default_rng(1).permutation(len(contents))]
    expected = sum(map(len, contents))
    rates = ReadingRates(packing.name)
    with tempfile.TemporaryDirectory(prefix="formats-", dir=data_root) as name:
        folder = Path(name)
        packing.write(folder, contents)
        for _ in range(rounds):
            drop_from_caches(folder)
            rates.cold_in_order.append(_time_reading(packing.read_all(folder), expected))
            rates.warm_in_order.append(_time_reading(packing.read_all(folder), expected))
            drop_from_caches(folder)
            shuffled = packing.read_at(folder, order)
            if shuffled is not None:
                rates.cold_shuffled.append(_time_reading(shuffled, expected))
        rates.files = sum(1 for path in folder.rglob("*") if path.is_file())
    return rates


def format_rates(rates: Sequence[float]) -> str:
    """Return the median and the range of contents per second."""
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def _time_reading(contents: Iterator[Any], expected_bytes: int) -> float:
    """Return contents per second, all of which must come."""
    start = time.perf_counter()
    count = total = 0
    for content in contents:
        count += 1
        total += len(content)
    seconds = time.perf_counter() - start
    assert total == expected_bytes, f"{total} bytes of {expected_bytes} were read"
    return count / seconds
