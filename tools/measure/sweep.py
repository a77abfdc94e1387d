"""`cepheid measure sweep`: times by batch size or number of images, as a paper reports them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.benchmarks.registry import find_task_module
from cepheid.measure.studies.sweep.jobs import BATCH_SIZE, Job
from cepheid.reference.machine.placement import find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import (
    add_data_option,
    add_measurement_folder,
    add_set_option,
    find_measurement,
    make_command_parser,
)
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

if TYPE_CHECKING:
    from cepheid.measure.engine.published import Published
    from cepheid.measure.studies.sweep.points import Point
    from cepheid.measure.studies.sweep.records import Sweep

DESCRIPTION = """\
Measure as Arcelin 2021 did (figures 2 to 4), and set this machine beside those of the paper:

  --batch-sizes   seconds for 100 epochs of 8,000 samples after 10 epochs of warm-up. Only as many
                  of the 100 epochs are run as take a minute, or as --epochs says; the time is
                  scaled, and every output says from how much.
  --images        seconds to generate n images after a warm-up, repeated, with sampling and decoding
                  separately. Where the weights of a scale have never been trained, untrained ones
                  are timed, which take as long; the figure says so.

  --quality       the quality after --samples samples, the same at every batch size, for each of
                  --seeds: how small a batch may be. Each training is a process on one thread.

Each size is measured in a process of its own, with its peak of memory and, where there are sensors,
its energy. It is recorded when it is done, and the same command measures what is missing. The
folder then has sweep.json, sweep.csv and the figure sweep.png (quality.json and so on).
"""
EXAMPLES = """\
examples:
  cepheid measure sweep galaxy_shape --batch-sizes 2,4,8,10,12,14
  cepheid measure sweep galaxy_shape --scale mini --batch-sizes 4,32 --epochs 0.5
  cepheid measure sweep galaxy_shape --epochs 100 --set precision=fp32 --output results/sweep-fp32
      the whole measure of the paper, in its precision
  cepheid measure sweep galaxy_shape --against ../other/sweep.json
      a second machine in the figure
  cepheid measure sweep galaxy_shape --framework keras
      the same in the framework of the paper
  cepheid measure sweep galaxy_shape --scale mini --quality --seeds 1,2,3
  cepheid measure sweep galaxy_generation --images 1,10,100,500,1000,5000
  cepheid measure sweep galaxy_generation --scale mini

exit codes: 0 fine; 1 a size could not be measured; 2 wrong use
"""
LARGEST_SIZE = 10**7
DEFAULT_SEEDS = "1,2,3"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure sweep`."""
    parser = make_command_parser("measure sweep", DESCRIPTION, EXAMPLES)
    add = parser.add_argument
    add("benchmark", help="which benchmark")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument(
        "--batch-sizes",
        metavar="B,…",
        help="batch sizes to train with (default: those of the paper's figure)",
    )
    sizes.add_argument(
        "--images",
        metavar="N,…",
        help="numbers of images to generate (default: those of the paper's figure)",
    )
    add("--scale", default="full", help="full (default: the paper's network) or mini")
    add(
        "--epochs",
        type=float,
        metavar="E",
        help="how many of the 100 epochs to run, e.g. 0.5 (default: what takes a minute)",
    )
    add("--framework", default="torch", help="torch (default) or keras, where the benchmark has it")
    add(
        "--quality",
        action="store_true",
        help="train to the same number of samples at each batch size, and draw the quality",
    )
    add(
        "--samples",
        type=int,
        metavar="N",
        help="of --quality (default: the samples over which the learning rate decays)",
    )
    add("--seeds", metavar="S,…", help=f"of --quality (default: {DEFAULT_SEEDS})")
    add_set_option(parser)
    add_data_option(parser)
    add_measurement_folder(parser, "sweep")
    add(
        "--against",
        type=Path,
        metavar="OTHER.json",
        help="sweep.json of another machine, to draw beside this one",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print a table, write tables and figure."""
    arguments = make_parser().parse_args(argv)
    if find_placement().world_size > 1:
        raise UserError("`cepheid measure sweep` measures one device: start it without a launcher")
    definition = definitions.load(arguments.benchmark, arguments.scale)
    measure = "training" if definition.kind == "train" else "generation"
    _refuse_options(arguments, definition)
    find_task_module(definition, arguments.framework)
    extras.require_for_runs(definition.extras, arguments.framework)

    from cepheid.measure.engine.published import load_published
    from cepheid.measure.studies.sweep.records import SIZE_NAMES, read_sweep, refuse_other_measure

    published = load_published(definition.name)
    text = arguments.batch_sizes if measure == "training" else arguments.images
    sizes = _pick_sizes(text, SIZE_NAMES[measure], published)
    suffix = "" if arguments.framework == "torch" else f"-{arguments.framework}"
    if arguments.quality:
        from cepheid.tools.measure.sweep_quality import sweep_quality

        seeds = parse_numbers("--seeds", arguments.seeds or DEFAULT_SEEDS)
        output = find_measurement(arguments, f"quality{suffix}")
        return sweep_quality(definition, arguments, sizes, seeds, output)
    other = read_sweep(arguments.against) if arguments.against else None
    if other:  # before anything is prepared
        this = {"benchmark": definition.name, "scale": definition.scale, "measure": measure}
        refuse_other_measure(other, this)
    jobs = [
        Job(
            definition.name,
            definition.scale,
            arguments.framework,
            measure,
            size,
            arguments.epochs,
            tuple(arguments.overrides),
            arguments.data,
        )
        for size in sizes
    ]
    output = find_measurement(arguments, f"sweep{suffix}")
    return _sweep(definition, jobs, output, published, other)


def _refuse_options(arguments: argparse.Namespace, definition: Definition) -> None:
    """Raise UserError for options that do not fit the benchmark."""
    from cepheid.reference.run.config import parse_override

    if definition.kind == "train" and arguments.images:
        raise UserError(
            f"--images: {definition.name} trains and does not generate images; give --batch-sizes, "
            f"or one of the benchmarks that generate: {', '.join(_list_generating())}"
        )
    if definition.kind == "generate" and arguments.batch_sizes:
        raise UserError(f"--batch-sizes: {definition.name} generates images; give --images")
    if definition.kind == "generate" and arguments.epochs is not None:
        raise UserError(f"--epochs: {definition.name} generates images and has no epochs")
    if definition.kind == "generate" and arguments.quality:
        raise UserError(f"--quality: {definition.name} trains nothing")
    _refuse_beside_quality(arguments)
    if arguments.epochs is not None and not 0 < arguments.epochs <= 100:
        raise UserError(f"--epochs {arguments.epochs:g}: expected more than 0 and at most 100")
    if any(parse_override(override)[0] == BATCH_SIZE for override in arguments.overrides):
        raise UserError(f"--set {BATCH_SIZE}: give the batch sizes with --batch-sizes")


def _refuse_beside_quality(arguments: argparse.Namespace) -> None:
    """Raise UserError for options of the other kind of sweep, and for a senseless number."""
    for name in ("epochs", "against"):
        if arguments.quality and getattr(arguments, name) is not None:
            raise UserError(f"--{name}: it measures times; leave it out beside --quality")
    for name in ("samples", "seeds"):
        if not arguments.quality and getattr(arguments, name) is not None:
            raise UserError(f"--{name}: only --quality has it; fix: add --quality")
    if arguments.samples is not None and not 1 <= arguments.samples <= LARGEST_SIZE:
        raise UserError(f"--samples {arguments.samples}: expected 1 to {LARGEST_SIZE:,}")


def _list_generating() -> list[str]:
    return [
        name
        for name in definitions.names()
        if definitions.load(name, definitions.scales(name)[0]).kind == "generate"
    ]


def _pick_sizes(text: str | None, name: str, published: "Published | None") -> tuple[int, ...]:
    """Return the sizes of the option, or those of the paper, each once and in order."""
    option = f"--{name.replace('_', '-')}{'s' if name == 'batch_size' else ''}"
    if text is None:
        if published is None:
            example = "8,16,32" if name == "batch_size" else "1,10,100"
            raise UserError(
                f"{option} is missing: no paper reports times for this benchmark; fix: give it, "
                f"e.g. {option} {example}"
            )
        return published.in_figure
    return parse_numbers(option, text)


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return the numbers of an option, each once and in order."""
    numbers = text.split(",")
    if not all(
        number.strip().isdecimal() and 1 <= int(number) <= LARGEST_SIZE for number in numbers
    ):
        raise UserError(
            f"{option} {text}: expected numbers with commas between them, e.g. 2,4,8,16"
        )
    return tuple(sorted({int(number) for number in numbers}))


def _sweep(
    definition: Definition,
    jobs: Sequence[Job],
    output: Path,
    published: "Published | None",
    other: "Sweep | None",
) -> int:
    from cepheid.measure.engine import own_process
    from cepheid.measure.engine.recorded_points import measure_missing
    from cepheid.measure.studies.sweep import jobs as sweep_jobs
    from cepheid.measure.studies.sweep import records as sweep_records
    from cepheid.measure.studies.sweep.figure import draw_sweep
    from cepheid.reference.machine import energy
    from cepheid.tools.console.terminal import Terminal

    terminal = Terminal()
    configuration, has_gpu = sweep_jobs.prepare_sweep(definition, jobs[0], terminal)
    folder = sweep_records.open_folder(output, configuration)
    no_energy = energy.find_sensors(has_gpu=has_gpu).reason_for_none
    if no_energy:
        terminal.tell(f"energy: {no_energy}")
    failed = measure_missing(
        jobs,
        folder,
        lambda job: own_process.run_alone(measure_on_terminal, job),
        terminal,
        _describe_point,
    )
    points = folder.load_points()
    if not points:
        raise UserError(f"{output}: no size could be measured; the lines above say why")
    sweep = sweep_records.Sweep(configuration, points, no_energy)
    folder.write_tables(sweep, published, other)
    draw_sweep(folder.path / "sweep.png", sweep, published, other)
    terminal.tell(f"\n{_format_table(sweep, published, other)}\n")
    for name in ("sweep.json", "sweep.csv", "sweep.png"):
        terminal.tell(f"written: {folder.path / name}")
    return EXIT_FINDINGS if terminal.tell_failed(failed) else EXIT_FINE


def measure_on_terminal(job: Job) -> "Point":
    """Measure one size in this process, which was started for it."""
    from cepheid.measure.studies.sweep.jobs import measure_size
    from cepheid.tools.console.terminal import Terminal

    return measure_size(job, Terminal())


def _describe_point(point: "Point") -> str:
    """Return the measured time with its spread, and how much was run."""
    first, third = point.middle_half_seconds
    if "timed_epochs" in point.counts:
        what = "seconds for 100 epochs"
        how = f"{point.counts['timed_epochs']:.3g} epochs timed"
    else:
        what, how = "seconds", f"{point.counts['repetitions']:.0f} repetitions"
    spread = f"middle half {_format_number(first)} to {_format_number(third)}"
    return f"{_format_number(point.seconds)} {what} ({spread}; {how})"


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _format_table(sweep: "Sweep", published: "Published | None", other: "Sweep | None") -> str:
    """Return a line for each size, with the other machine and the reported times beside it."""
    from tabulate import tabulate

    label = sweep.size_name.replace("_", " ")
    rows = [
        {label: f"{point.size:,}"} | _make_row(point) | _compare(point, published, other)
        for point in sweep.points
    ]
    return tabulate(rows, headers="keys", disable_numparse=True)


def _make_row(point: "Point") -> dict[str, str]:
    first, third = point.middle_half_seconds
    row = {
        "seconds": _format_number(point.seconds),
        "middle half": f"{_format_number(first)} to {_format_number(third)}",
    }
    row |= {name: _format_number(value) for name, value in point.parts_seconds.items()}
    if "timed_epochs" in point.counts:
        row["measured"] = f"{point.counts['timed_epochs']:.3g} of 100 epochs"
    row["images/s"] = _format_number(point.images_per_second)
    row["peak MiB"] = f"{point.peak_resident_bytes / 2**20:,.0f}"
    if point.peak_device_bytes is not None:
        row["device MiB"] = f"{point.peak_device_bytes / 2**20:,.0f}"
    if point.energy_joules is not None:
        row["kJ"] = f"{point.energy_joules / 1000:.3g}"
    return row


def _compare(
    point: "Point", published: "Published | None", other: "Sweep | None"
) -> dict[str, str]:
    """Return the seconds of the other machine, how many times ours they are, and reported ones."""
    row = {}
    if other:
        there = other.find_point(point.size)
        row[f"other: {other.machine}"] = _format_number(there.seconds) if there else ""
        row["other / this"] = f"{there.seconds / point.seconds:.2f}" if there else ""
    for machine in published.machines if published else ():
        seconds = machine.seconds.get(point.size)
        row[f"{machine.name} (reported)"] = _format_number(seconds) if seconds else ""
    return row


if __name__ == "__main__":
    run_tool(main)
