"""`cepheid measure scaling`: how throughput grows with the number of ranks, and what limits it."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.studies.scaling.points import INPUTS, STRONG, WEAK
from cepheid.measure.studies.scaling.tasks import BATCH_SIZE, Job
from cepheid.reference.machine.placement import end_rank, find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors
from cepheid.tools.console.arguments import (
    add_benchmark,
    add_data_option,
    add_measurement_folder,
    add_set_option,
    find_measurement,
    make_command_parser,
)
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

if TYPE_CHECKING:
    from cepheid.measure.engine.recorded_points import PointFolder
    from cepheid.measure.studies.scaling.points import Point, Spread
    from cepheid.reference.torch.distributed import TorchRanks
    from cepheid.tools.console.terminal import Terminal

DESCRIPTION = """\
Measure how many samples per second ranks train together, and where the time of a step goes.

The ranks are started here, each with one thread and its own share of the processors. In every turn
they train together, the first one trains alone, and all train at once without any communication; so
other work on the machine disturbs all three alike. Efficiency is the rate together over the number
of ranks times the rate alone.
"Ceiling" is the same without communication: what is missing there, the ranks take from each other
(processors, memory, caches).

Real data are compared with synthetic data, which are one batch that stays in memory: where the
rate with real data is lower, input binds. The shares are those of a profiled step, in which
communication hides behind nothing.

By default each rank keeps its batch (weak scaling). With --strong all ranks share one batch.

Each number of ranks is recorded when it is done, and the same command measures what is missing. The
folder then has scaling.json and the figure scaling.png; `cepheid measure project` starts from it.
Under a launcher, the ranks that it started are measured.
"""
EXAMPLES = """\
examples:
  cepheid measure scaling galaxy_shape
  cepheid measure scaling resnet50 --ranks 1,2 --set precision=fp32
  cepheid measure scaling resnet50 --strong --batch-size 64
  cepheid measure scaling resnet50 --scale full --batch-size 32 --input synthetic
  torchrun --nproc-per-node 8 -m cepheid.tools.measure scaling resnet50 --scale full \\
      --batch-size 400

exit codes: 0 fine; 1 a number of ranks could not be measured; 2 wrong use
"""
MOST_RANKS = 4096
LONGEST_TURN_SECONDS = 600
FIGURE = "scaling.png"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure scaling`."""
    parser = make_command_parser("measure scaling", DESCRIPTION, EXAMPLES)
    add_benchmark(parser, "which benchmark; it must train")
    add = parser.add_argument
    add(
        "--ranks",
        metavar="N,…",
        help="numbers of ranks to start here (default: 1, 2, 4, … up to the processors or GPUs)",
    )
    add(
        "--input",
        choices=(*INPUTS, "both"),
        default="both",
        help="real data, synthetic ones or both in turns (default); synthetic needs no data set",
    )
    add("--strong", action="store_true", help="all ranks share one batch (default: each has one)")
    add(
        "--batch-size",
        type=int,
        metavar="B",
        help="samples of each rank in a step, with --strong of all (default: the definition's)",
    )
    add("--rounds", type=int, default=5, metavar="N", help="turns (default: 5)")
    add(
        "--turn-seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="how long each way of training takes in a turn, at least two steps (default: 1)",
    )
    add_set_option(parser)
    add_data_option(parser)
    add_measurement_folder(parser, "scaling")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print a table, write JSON and figure."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    extras.require_for_runs(definition.extras)
    launched = find_placement().world_size
    counts = _pick_ranks(arguments.ranks, launched)
    jobs = _plan(definition, arguments, counts, launched > 1)
    output = find_measurement(arguments, "scaling")
    if launched > 1:
        _measure_launched(jobs[0], output)
        end_rank(EXIT_FINE)
    return _measure_here(jobs, output)


def _pick_ranks(text: str | None, launched: int) -> tuple[int, ...]:
    """Return the numbers of ranks, each once and in order."""
    if launched > 1:
        if text not in (None, str(launched)):
            raise UserError(
                f"--ranks {text}: the launcher has started {launched} ranks; leave --ranks out, or "
                "start without a launcher"
            )
        return (launched,)
    places, what = _count_places()
    if text is None:
        return tuple(2**power for power in range(places.bit_length()))
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= MOST_RANKS for part in parts):
        raise UserError(f"--ranks {text}: expected numbers with commas between them, e.g. 1,2,4")
    counts = tuple(sorted({int(part) for part in parts}))
    if counts[-1] > places:
        raise UserError(
            f"--ranks {counts[-1]}: this machine has {places} {what}, and ranks that share one "
            f"only wait for each other; choose at most {places}, or start more machines with a "
            "launcher"
        )
    return counts


def _count_places() -> tuple[int, str]:
    """Return how many ranks this machine has room for, and what they would use."""
    import torch

    gpus = torch.cuda.device_count()
    return (gpus, "GPUs") if gpus else (usable_processors(), "processors")


def _plan(
    definition: Definition,
    arguments: argparse.Namespace,
    counts: Sequence[int],
    launched: bool,
) -> list[Job]:
    """Return the measurements to make; raise UserError for what cannot be measured."""
    from cepheid.reference.run.config import parse_override

    if definition.kind != "train":
        raise UserError(
            f"{definition.name} generates and does not train in steps; `cepheid measure sweep "
            f"{definition.name}` measures how fast it is"
        )
    settings = {parse_override(override)[0] for override in arguments.overrides}
    if BATCH_SIZE in settings:
        raise UserError(f"--set {BATCH_SIZE}: give the samples of a step with --batch-size")
    if arguments.rounds < 3:
        raise UserError(f"--rounds {arguments.rounds}: expected 3 or more, for a spread")
    if not 0 < arguments.turn_seconds <= LONGEST_TURN_SECONDS:
        raise UserError(
            f"--turn-seconds {arguments.turn_seconds:g}: expected more than 0 and at most "
            f"{LONGEST_TURN_SECONDS}"
        )
    batch = arguments.batch_size
    if batch is None:
        batch = int(definition.hyperparameters[BATCH_SIZE].default)
    if not 1 <= batch <= definition.train_samples:
        raise UserError(
            f"--batch-size {batch}: expected 1 to {definition.train_samples:,}, the samples that "
            "there are to train on"
        )
    uneven = [count for count in counts if arguments.strong and batch % count]
    if uneven:
        raise UserError(
            f"--ranks {uneven[0]}: {batch} samples cannot be shared evenly by so many ranks: "
            f"choose a --batch-size that is a multiple of {uneven[0]}, or leave out --strong"
        )
    overrides = tuple(arguments.overrides)
    if "threads" not in settings:
        overrides += ("threads=1",)
    inputs = INPUTS if arguments.input == "both" else (arguments.input,)
    mode = STRONG if arguments.strong else WEAK
    return [
        Job(
            definition.name,
            definition.scale,
            count,
            mode,
            inputs,
            batch,
            overrides,
            arguments.data,
            arguments.rounds,
            arguments.turn_seconds,
            0 if launched else max(1, usable_processors() // counts[-1]),
        )
        for count in counts
    ]


def _measure_here(jobs: Sequence[Job], output: Path) -> int:
    """Start the ranks of each number that is not recorded yet."""
    from cepheid.measure.engine import own_process
    from cepheid.measure.engine.recorded_points import measure_missing
    from cepheid.measure.studies.scaling.ranks import measure_ranks
    from cepheid.measure.studies.scaling.records import open_folder, prepare_scaling
    from cepheid.reference.torch.distributed import start_ranks
    from cepheid.tools.console.terminal import Terminal

    terminal = Terminal()
    load = os.getloadavg()[0]
    with start_ranks() as alone:
        configuration = prepare_scaling(jobs[0], alone, terminal)
    folder = open_folder(output, configuration)

    def measure(job: Job) -> "Point":
        return own_process.run_on_ranks(job.ranks, measure_ranks, job)

    failed = measure_missing(jobs, folder, measure, terminal, _describe_point)
    _show(terminal, folder, configuration)
    terminal.warn_of_load(load)
    return EXIT_FINDINGS if terminal.tell_failed(failed) else EXIT_FINE


def _measure_launched(job: Job, output: Path) -> None:
    """Measure the ranks of a launcher; the first one prepares the data and writes."""
    from cepheid.measure.studies.scaling.ranks import measure_ranks
    from cepheid.measure.studies.scaling.records import open_folder, prepare_scaling
    from cepheid.tools.console.terminal import Terminal

    terminal = Terminal(quiet=find_placement().rank > 0)
    configuration: dict[str, Any] = {}

    def prepare(ranks: "TorchRanks") -> None:
        configuration.update(prepare_scaling(job, ranks, terminal))
        open_folder(output, configuration)  # refuses another measurement before this one is made

    point = measure_ranks(job, prepare)
    if configuration:
        folder = open_folder(output, configuration)
        folder.keep(point)
        _show(terminal, folder, configuration)


def _show(
    terminal: "Terminal", folder: "PointFolder[Point]", configuration: Mapping[str, Any]
) -> None:
    """Print the table; write scaling.json and the figure."""
    from tabulate import tabulate

    from cepheid.measure.engine.recorded_points import name_machine
    from cepheid.measure.studies.scaling.figure import draw_scaling
    from cepheid.measure.studies.scaling.records import FILE, write_scaling

    points = folder.load_points()
    if not points:
        raise UserError(f"{folder.path}: no number of ranks could be measured; see above")
    write_scaling(folder, configuration)
    kind = "the same batch for all" if configuration["mode"] == STRONG else "a batch for each rank"
    title = (
        f"{configuration['benchmark']}, {configuration['scale']} scale: {configuration['mode']} "
        f"scaling ({kind}), each rank on {name_machine(configuration)}"
    )
    draw_scaling(folder.path / FIGURE, title, points)
    rows = tabulate(list(map(_make_row, points)), headers="keys", disable_numparse=True)
    terminal.tell(f"\n{title}\n\n{rows}\n")
    for point in points:
        if sentence := _judge_input(point):
            terminal.tell(sentence)
    for name in (FILE, FIGURE):
        terminal.tell(f"written: {folder.path / name}")


def _make_row(point: "Point") -> dict[str, str]:
    from cepheid.measure.studies.scaling.points import TOGETHER, spread

    kind = point.inputs[0]
    rate = spread(point.rates(TOGETHER, kind))
    ratio, ceiling = point.real_over_synthetic(), point.ceiling()
    row = {
        "ranks": f"{point.ranks}",
        "batch": f"{point.batch_size:,}",
        "samples/s": " ".join(
            (f"{rate.median:,.4g}", f"({rate.first_quartile:,.4g} to {rate.third_quartile:,.4g})")
        ),
        "speed-up": f"{point.ranks * point.efficiency(kind).median:.2f}",
    }
    for each in point.inputs:
        row[f"efficiency, {each}"] = _format_spread(point.efficiency(each))
    row["ceiling"] = _format_spread(ceiling) if ceiling else ""
    row |= {name: f"{share:.1%}" for name, share in point.shares.items()}
    row["real/synthetic"] = _format_spread(ratio) if ratio else ""
    return row


def _format_spread(value: "Spread") -> str:
    return f"{value.median:.2f} ({value.first_quartile:.2f} to {value.third_quartile:.2f})"


def _judge_input(point: "Point") -> str:
    ratio = point.real_over_synthetic()
    if ratio is None:
        return ""
    verdict = "input binds" if point.is_input_bound else "input does not bind"
    ranks = f"{point.ranks} rank{'s' if point.ranks > 1 else ''}"
    return f"{ranks}: {verdict}: real data reach {ratio.median:.0%} of the rate of synthetic data"


def _describe_point(point: "Point") -> str:
    from cepheid.measure.studies.scaling.points import TOGETHER, spread

    kind = point.inputs[0]
    rate = spread(point.rates(TOGETHER, kind)).median
    return f"{rate:,.4g} samples/s, efficiency {_format_spread(point.efficiency(kind))}"


if __name__ == "__main__":
    run_tool(main)
