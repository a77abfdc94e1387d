"""`cepheid measure formats`: how fast many small files are read, by how they are packed."""

import argparse
from collections.abc import Sequence

from cepheid.rules import extras
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import add_data_option, make_command_parser
from cepheid.tools.console.program import EXIT_FINE, run_tool

DESCRIPTION = """\
Measure how many images a second one process reads from the disk of --data, packed in several ways:
in order and in random order with cold file caches, and in order with warm ones.

Contents are random bytes as long as the images of ImageNet (110 kB on average, from 10 to 600 kB),
and nothing is decoded. Cold means that the pages of each file are dropped (posix_fadvise DONTNEED,
which needs no root) before each measurement; names and inodes stay cached, and so does whatever a
hypervisor or a storage server keeps. On a shared file system each open costs more: the column
`files` says how many files there are. Numbers are medians; brackets hold the smallest and the
largest. The command needs room for twice the contents and deletes what it wrote.
"""
EXAMPLES = """\
examples:
  cepheid measure formats                                   on the disk of data/
  cepheid measure formats --data /lustre/me --files 50000   on a shared file system
  cepheid measure formats --png                             radiographs: how fast PNG is decoded

exit codes: 0 fine; 2 wrong use
"""
FEWEST_FILES = 10


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure formats`."""
    parser = make_command_parser("measure formats", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("--files", type=int, default=5000, metavar="N", help="how many files (default: 5000)")
    add("--rounds", type=int, default=3, metavar="N", help="measurements of each (default: 3)")
    add("--png", action="store_true", help="decode grey PNG files of 1,024 x 1,024 pixels instead")
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write, read and print a table; delete what was written."""
    arguments = make_parser().parse_args(argv)
    if arguments.files < FEWEST_FILES or arguments.rounds < 1:
        raise UserError(
            f"--files {arguments.files} --rounds {arguments.rounds}: expected {FEWEST_FILES} files "
            "or more and 1 round or more"
        )

    extras.require("filelock", "numpy", *(["PIL"] if arguments.png else []))
    if arguments.png:
        return _measure_png(arguments.rounds)

    from tabulate import tabulate

    from cepheid.measure.studies.formats import packing
    from cepheid.measure.studies.formats.formats import (
        check_space,
        format_rates,
        make_contents,
        measure_reading,
    )
    from cepheid.reference.data.preparation import explain_disk_errors
    from cepheid.tools.console.terminal import Terminal

    terminal = Terminal()
    rows = []
    contents = make_contents(arguments.files)
    total = sum(map(len, contents))
    with explain_disk_errors(arguments.data):
        arguments.data.mkdir(parents=True, exist_ok=True)
        check_space(arguments.data, total)
        for way in packing.PACKINGS:
            if not packing.is_installed(way):
                terminal.tell(f"{way.name}: left out, {way.package} is not installed")
                continue
            rates = measure_reading(way, contents, arguments.data, arguments.rounds)
            terminal.tell(
                f"{way.name}: {format_rates(rates.cold_in_order)} images/s cold, in order"
            )
            shuffled = rates.cold_shuffled
            rows.append(
                {
                    "": way.name,
                    "files": f"{rates.files:,}",
                    "cold, in order": format_rates(rates.cold_in_order),
                    "cold, random order": format_rates(shuffled) if shuffled else "not possible",
                    "warm, in order": format_rates(rates.warm_in_order),
                }
            )
    terminal.tell(f"\n{len(contents):,} images, {total / 1e6:,.0f} MB; images a second")
    terminal.tell(tabulate(rows, headers="keys", disable_numparse=True))
    return EXIT_FINE


def _measure_png(rounds: int) -> int:
    """Print how long one core needs to decode a radiograph and to resize it."""
    from cepheid.measure.studies.formats.png_decoding import PIXELS, SEEN_PIXELS, measure_decoding

    found = measure_decoding(rounds)
    total = found.decoding_ms + found.resizing_ms
    print(
        f"grey PNG, {PIXELS:,} x {PIXELS:,} pixels, {found.mean_kilobytes:,.0f} kB: decoding "
        f"{found.decoding_ms:.1f} ms, resizing to {SEEN_PIXELS} pixels {found.resizing_ms:.1f} ms, "
        f"{1000 / total:.0f} images/s on one core"
    )
    return EXIT_FINE


if __name__ == "__main__":
    run_tool(main)
