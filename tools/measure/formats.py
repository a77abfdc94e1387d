"""`cepheid measure formats`: how fast many small files are read, by how they are packed."""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules.errors import UserError
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINE, run_tool

if TYPE_CHECKING:
    from tools.measure.packing import Packing

DESCRIPTION = """\
Measure how many images a second one process reads from the disk on which --data lies, packed in
several ways: in order and in random order, with cold file caches; in order with warm ones.

Contents are random bytes as long as the images of ImageNet (110 kB on average, from 10 to 600 kB),
and nothing is decoded. Cold means that each file's pages are dropped (posix_fadvise DONTNEED, which
needs no root) before each measurement; names and inodes stay cached, and so does whatever a
hypervisor or a storage server keeps. What each open costs on a shared file system comes on top: the
number of files says how many there are. Numbers are medians, brackets hold the spread.
"""
EXAMPLES = """\
examples:
  cepheid measure formats                                   on the disk of data/
  cepheid measure formats --data /lustre/me --files 50000   on a shared file system
"""
MEAN_KB, SHORTEST_KB, LONGEST_KB = 110, 10, 600
SPARE_BYTES = 2**28


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid measure formats`."""
    made = command_parser("measure formats", DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add("--files", type=int, default=5000, metavar="N", help="how many (default: 5000)")
    add("--rounds", type=int, default=3, metavar="N", help="measurements of each (default: 3)")
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write, read, print a table; what was written is deleted again."""
    arguments = parser().parse_args(argv)
    if arguments.files < 10 or arguments.rounds < 1:
        raise UserError(
            f"--files {arguments.files} --rounds {arguments.rounds}: expected 10 files or more and "
            f"1 round or more"
        )

    from rich.console import Console
    from tabulate import tabulate

    from reference.data.preparation import told_plainly
    from tools.measure.packing import PACKINGS, is_installed

    console = Console(highlight=False, soft_wrap=True)
    rows = []
    with told_plainly(arguments.data):
        arguments.data.mkdir(parents=True, exist_ok=True)
        contents = _contents(arguments.files)
        _check_space(arguments.data, sum(map(len, contents)))
        for packing in PACKINGS:
            if not is_installed(packing):
                console.print(f"{packing.name}: left out, {packing.package} is not installed")
                continue
            rows.append(_measured(packing, contents, arguments.data, arguments.rounds))
            console.print(f"{packing.name}: {rows[-1]['cold, in order']} images/s cold, in order")
    size_mb = sum(map(len, contents)) / 1e6
    console.print(f"\n{len(contents):,} images, {size_mb:,.0f} MB; images a second")
    console.print(tabulate(rows, headers="keys", disable_numparse=True), markup=False)
    return EXIT_FINE


def _contents(files: int) -> list[bytes]:
    """Random bytes with the spread of ImageNet's file sizes."""
    import numpy as np

    random = np.random.default_rng(0)
    sizes = random.lognormal(np.log(MEAN_KB) - 0.5 * 0.6**2, 0.6, size=files) * 1000
    sizes = np.clip(sizes, SHORTEST_KB * 1000, LONGEST_KB * 1000)
    return [random.bytes(int(size)) for size in sizes]


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 2 * needed + SPARE_BYTES:  # LMDB rounds each content up to whole pages
        raise UserError(
            f"{folder}: {free / 1e6:,.0f} MB free, {(2 * needed + SPARE_BYTES) / 1e6:,.0f} MB "
            f"needed. Ask for fewer --files, or give --data on another disk."
        )


def _measured(
    packing: "Packing", contents: Sequence[bytes], data: Path, rounds: int
) -> dict[str, str]:
    import numpy as np

    from tools.measure.packing import drop_from_caches

    order = [int(place) for place in np.random.default_rng(1).permutation(len(contents))]
    expected = sum(map(len, contents))
    in_order, shuffled, warm = [], [], []
    with tempfile.TemporaryDirectory(prefix="formats-", dir=data) as name:
        folder = Path(name)
        packing.write(folder, contents)
        for _ in range(rounds):
            drop_from_caches(folder)
            in_order.append(_rate(packing.in_order(folder), expected))
            warm.append(_rate(packing.in_order(folder), expected))
            drop_from_caches(folder)
            read = packing.at(folder, order)
            if read is not None:
                shuffled.append(_rate(read, expected))
        files = sum(1 for path in folder.rglob("*") if path.is_file())
    return {
        "": packing.name,
        "files": f"{files:,}",
        "cold, in order": _spread(in_order),
        "cold, random order": _spread(shuffled) if shuffled else "not possible",
        "warm, in order": _spread(warm),
    }


def _rate(contents: Iterator[Any], expected_bytes: int) -> float:
    """Contents a second; all of them must come."""
    started = time.perf_counter()
    count = total = 0
    for content in contents:
        count += 1
        total += len(content)
    seconds = time.perf_counter() - started
    assert total == expected_bytes, f"{total} bytes of {expected_bytes} were read"
    return count / seconds


def _spread(rates: Sequence[float]) -> str:
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


if __name__ == "__main__":
    run_tool(main)
