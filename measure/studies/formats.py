"""How fast a disk gives images, by how they are packed: `cepheid measure formats`."""

import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.turns import format_spread
from cepheid.measure.studies.packings import PACKINGS, Packing, is_installed, load_package
from cepheid.rules import extras
from cepheid.rules.errors import UserError

MEAN_KB, SHORTEST_KB, LONGEST_KB = 110, 10, 600
LOG_SPREAD = 0.6  # of the lengths, as of ImageNet's files
SPARE_BYTES = 2**28
ALL_ARE_READY_SECONDS = 0.5


def drop_from_caches(folder: Path) -> None:
    """Ask the operating system to forget the contents of all files below ``folder``."""
    # The system keeps what is not on the disk yet. One call for all: a thousand take minutes.
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


@dataclass
class ReadingRates:
    """Contents per second of one way to pack them, a number for each round."""

    name: str
    files: int = 0
    cold_in_order: list[float] = field(default_factory=list)
    cold_shuffled: list[float] = field(default_factory=list)  # stays empty where it is impossible
    warm_in_order: list[float] = field(default_factory=list)
    cold_shared: list[float] = field(default_factory=list)  # by several processes, if asked for


def make_contents(count: int) -> list[bytes]:
    """Return random bytes whose lengths are distributed like ImageNet's files."""
    import numpy as np

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
    way: Packing, contents: Sequence[bytes], data_root: Path, rounds: int, readers: int = 1
) -> ReadingRates:
    """Pack contents in a temporary folder and read them again and again.

    A cold measurement begins by dropping the files from the caches of the operating system.
    """
    import numpy as np

    order = [int(place) for place in np.random.default_rng(1).permutation(len(contents))]
    expected = sum(map(len, contents))
    rates = ReadingRates(way.name)
    with tempfile.TemporaryDirectory(prefix="formats-", dir=data_root) as name:
        folder = Path(name)
        way.write(folder, contents)
        rates.files = sum(1 for path in folder.rglob("*") if path.is_file())
        for _ in range(rounds):
            drop_from_caches(folder)
            rates.cold_in_order.append(_time_reading(way.read(folder, None), expected))
            rates.warm_in_order.append(_time_reading(way.read(folder, None), expected))
            drop_from_caches(folder)
            if not way.only_in_order:
                rates.cold_shuffled.append(_time_reading(way.read(folder, order), expected))
            if readers > 1:
                drop_from_caches(folder)
                rates.cold_shared.append(_time_readers(way, folder, order, readers, expected))
    return rates


def format_rates(rates: Sequence[float]) -> str:
    """Return the median and the range of contents per second."""
    return format_spread(statistics.median(rates), (min(rates), max(rates)), ",.0f")


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


def _time_readers(
    way: Packing, folder: Path, order: Sequence[int], readers: int, expected_bytes: int
) -> float:
    """Return contents per second of processes that read all of them once, together."""
    spawn = multiprocessing.get_context("spawn")  # libraries with threads do not survive a fork
    number = PACKINGS.index(way)
    parts = [_find_part(way, folder, order, (place, readers)) for place in range(readers)]
    with ProcessPoolExecutor(readers, mp_context=spawn) as pool:
        list(pool.map(_prepare_reader, [way.package] * readers))
        begin = time.monotonic() + ALL_ARE_READY_SECONDS
        spans = list(pool.map(partial(_read_part, number, begin), *zip(*parts, strict=True)))
    starts, ends, sizes, counts = zip(*spans, strict=True)
    assert sum(sizes) == expected_bytes, f"{sum(sizes)} bytes of {expected_bytes} were read"
    return float(sum(counts) / (max(ends) - min(starts)))


def _prepare_reader(package: str) -> None:
    """Import what a reader needs, and take long enough that each process of the pool gets one."""
    if package:
        load_package(package)
    time.sleep(ALL_ARE_READY_SECONDS)


def _find_part(
    way: Packing, folder: Path, order: Sequence[int], place: tuple[int, int]
) -> tuple[Path, Sequence[int] | None]:
    """Return the folder and the contents of the reader at a ``place``: its number, and of how many.

    What can only be read in order is shared by files, which stand as links in a folder of its own.
    """
    number, readers = place
    if not way.only_in_order:
        return folder, order[number::readers]
    mine = folder / f"reader-{number}"
    mine.mkdir(exist_ok=True)
    for path in sorted(each for each in folder.iterdir() if each.is_file())[number::readers]:
        if not (mine / path.name).exists():
            os.link(path, mine / path.name)
    return mine, None


def _read_part(
    way: int, begin: float, folder: Path, order: Sequence[int] | None
) -> tuple[float, float, int, int]:
    """Read a part from a moment on; return begin, end, bytes and contents."""
    time.sleep(max(0.0, begin - time.monotonic()))
    start, total, count = time.monotonic(), 0, 0
    if order is not None or any(folder.iterdir()):
        for content in PACKINGS[way].read(folder, order):
            count += 1
            total += len(content)
    return start, time.monotonic(), total, count


def require_packages(request: Request) -> None:
    """Raise UserError where a package is missing."""
    extras.require("filelock", "numpy")


def measure(request: Request, _: None) -> Measured:
    """Write and read the contents in each way that is installed; delete what was written."""
    from cepheid.measure.engine.provenance import find_commit
    from cepheid.reference.data.disk import explain_disk_errors
    from cepheid.reference.machine.hardware import read_hardware

    asked, folder, observer = request.arguments, request.data_root, request.observer
    contents = make_contents(asked.files)
    total = sum(map(len, contents))
    rows = []
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_space(folder, total)
        for way in PACKINGS:
            if not is_installed(way):
                observer.tell(f"{way.name}: left out, {way.package} is not installed")
                continue
            rows.append(measure_reading(way, contents, folder, asked.rounds, asked.readers))
            observer.tell(
                f"{way.name}: {format_rates(rows[-1].cold_in_order)} images/s cold, in order"
            )
    hardware = read_hardware(folder)
    place = hardware.get("storage", "a disk")
    facts = {
        "formats": [asdict(row) for row in rows], "images": len(contents), "bytes": total,
        "readers": asked.readers, "storage": place, "command": request.command,
        "machine": {"processor": hardware["processor"], "accelerator": None},
        "commit": find_commit(),
    }  # fmt: skip
    title = f"\n{len(contents):,} images, {total / 1e6:,.0f} MB, on {place}; images a second"
    return Measured(rows, title, facts=facts)


STUDY = Study(
    "formats",
    require_packages,
    measure,
    columns=(
        Column("", "name"),
        Column("files", "files", "{:,}"),
        Column("cold, in order", "cold_in_order", format_rates),
        Column("cold, random order", "cold_shuffled",
               lambda rates: format_rates(rates) if rates else "not possible"),
        Column("warm, in order", "warm_in_order", format_rates),
        Column("cold, all readers", "cold_shared",
               lambda rates: format_rates(rates) if rates else ""),
    ),
    is_timed=True,
    **read_command("formats"),
)  # fmt: skip
