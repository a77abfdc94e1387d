"""`cepheid measure partitions`: what it brings that several ranks share each image."""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cepheid.benchmarks.registry import import_task
from cepheid.reference.machine.placement import end_rank, find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import add_benchmark, add_set_option, make_command_parser
from cepheid.tools.console.program import EXIT_FINE, run_tool

if TYPE_CHECKING:
    from cepheid.measure.studies.sharing.partitions import SizeTimings

DESCRIPTION = """\
Measure training steps whose ranks share each image (spatial_partitions) against one rank, and
against the same ranks with a part of the batch each (column `batch`), by size of the image.

The global batch is the same in all of them, and so is the mathematics: batch norms cover the global
batch. A step is forward, backward and the averaging of the gradients, on noise. All take turns.
Factors are the time of one rank over that of all ranks, of medians: above 1, more ranks are faster.
The factors in processor time leave out waiting for the other ranks, so they are what there is to
gain at best; other work on the machine changes them less. Brackets hold the middle half. MiB is
what a rank keeps of a forward pass for the backward pass: alone, with a part of the batch, and with
each partition.
"""
EXAMPLES = """\
examples:
  torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure partitions resnet50
  torchrun --standalone --nproc-per-node 4 -m cepheid.tools.measure partitions resnet50 \\
      --sizes 256,512

exit codes: 0 fine; 2 wrong use
"""
SIZES = (64, 128, 256, 512)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure partitions`."""
    parser = make_command_parser("measure partitions", DESCRIPTION, EXAMPLES)
    add_benchmark(parser)
    add = parser.add_argument
    add(
        "--sizes",
        default=",".join(map(str, SIZES)),
        metavar="N,…",
        help="heights and widths of images, in pixels (default: %(default)s)",
    )
    add("--batch", type=int, metavar="N", help="images in the global batch (default: one a rank)")
    add("--rounds", type=int, default=7, metavar="N", help="turns of each (default: 7)")
    add_set_option(parser, "a setting of the reference, as for `cepheid run`")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    numbers = arguments.sizes.split(",")
    if not all(number.isdecimal() and int(number) > 0 for number in numbers):
        raise UserError(f"--sizes {arguments.sizes}: expected numbers above 0, e.g. 64,128")
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    extras.require_for_runs(definition.extras)
    ranks = find_placement().world_size
    batch = ranks if arguments.batch is None else arguments.batch
    settings = [f"global_batch_size={batch}", "compile=off", "precision=fp32"]
    if "model_bn_span" in definition.hyperparameters:
        settings.append("model_bn_span=0")
    _measure(definition, [*settings, *arguments.overrides], numbers, arguments.rounds)
    if ranks > 1:
        end_rank(EXIT_FINE)
    return EXIT_FINE


def _measure(
    definition: definitions.Definition, overrides: list[str], sizes: list[str], rounds: int
) -> None:
    load = os.getloadavg()[0]

    from tabulate import tabulate

    from cepheid.measure.studies.sharing.partitions import find_break_even, list_grids, measure_size
    from cepheid.reference.run.config import configure
    from cepheid.reference.torch.distributed import start_ranks
    from cepheid.tools.console.terminal import Terminal

    config = configure(definition, division="open", overrides=overrides, seed=1)
    list_grids(config, find_placement().world_size)  # fails early
    create = import_task(definition, "torch").create
    with start_ranks() as ranks:
        terminal = Terminal(quiet=not ranks.is_first)
        measured = []
        for size in map(int, sizes):
            measured.append(measure_size(create, config, ranks, size, rounds))
            terminal.tell(f"{size} pixels: measured")
    table = tabulate(map(_make_row, measured), headers="keys", disable_numparse=True)
    terminal.tell(f"\n{table}\n")
    for grid in list_grids(config, ranks.world_size):
        for by_processor, what in ((False, "wall time"), (True, "processor time")):
            least = find_break_even(measured, grid, by_processor)
            found = f"from {least} pixels on" if least else "at no size measured"
            terminal.tell(f"{grid} parts are faster than one rank in {what}: {found}")
    terminal.warn_of_load(load)


def _make_row(size: "SizeTimings") -> dict[str, str]:
    from cepheid.measure.engine.subject import MIB
    from cepheid.measure.studies.sharing.partitions import ALONE

    base = size.wall[ALONE]
    first, third = base.quartiles_seconds
    row = {
        "pixels": f"{size.pixels}",
        "one rank, s": f"{base.median_seconds:.3f} ({first:.3f} to {third:.3f})",
    }
    for label, timing in size.wall.items():
        if label != ALONE:
            ratios = [base.median_seconds / each for each in reversed(timing.quartiles_seconds)]
            factor = base.median_seconds / timing.median_seconds
            row[label] = f"{factor:.2f} ({ratios[0]:.2f} to {ratios[1]:.2f})"
    own = size.processor[ALONE].median_seconds
    for label, timing in size.processor.items():
        if label != ALONE:
            row[f"{label}, processor"] = f"{own / timing.median_seconds:.2f}"
    row["MiB"] = ", ".join(f"{size.memory[label] / MIB:,.2f}" for label in size.wall)
    return row


if __name__ == "__main__":
    run_tool(main)
