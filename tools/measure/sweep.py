"""`cepheid measure sweep`: the measures and figures of the paper, on this machine."""

import argparse
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.run.frameworks import import_task
from reference.run.placement import placement
from rules import definition
from rules.definition import Definition, Generation
from rules.errors import UserError
from rules.host import usable_processors
from tools.arguments import add_data_option, add_set_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool

if TYPE_CHECKING:
    from rich.console import Console

    from reference.measure.published import Published
    from reference.measure.sweep import Point
    from reference.measure.sweep_records import Sweep, SweepFolder

DESCRIPTION = """\
Measure as the paper did (Arcelin 2021, figures 2 to 4) and set this machine beside those that it
reports:

  --batch-sizes   seconds for 100 epochs of 8,000 samples after 10 epochs of warm-up. Of the 100
                  epochs as many are run as take a minute, or as --epochs says; the time is scaled,
                  and every output says from how much.
  --images        seconds to generate n images after a warm-up, repeated; sampling and decoding
                  are told apart (galaxy_generation; galaxy_vae means its weights). Where nobody has
                  trained the weights of a scale yet, untrained ones are timed, which take as long;
                  the figure says so

Each size is measured in a process of its own, with its peak of memory and, where there are sensors,
its energy. It is recorded when it is done, and the same command measures what is missing. The
folder then holds sweep.json, sweep.csv and the figure sweep.png.
"""
EXAMPLES = """\
examples:
  cepheid measure sweep galaxy_shape --batch-sizes 2,4,8,10,12,14
  cepheid measure sweep galaxy_shape --scale mini --batch-sizes 4,32 --epochs 0.5
  cepheid measure sweep galaxy_shape --epochs 100 --set precision=fp32 --output results/sweep-fp32
      the whole of the paper's measure, in its precision
  cepheid measure sweep galaxy_shape --against ../other/sweep.json
      a second machine in the figure
  cepheid measure sweep galaxy_generation --images 1,10,100,500,1000,5000
  cepheid measure sweep galaxy_generation --scale mini

exit codes: 0 fine; 1 a size could not be measured; 2 wrong use
"""
# What generates with the weights of what trains them.
GENERATION_OF = {"galaxy_vae": "galaxy_generation"}


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid measure sweep`."""
    made = command_parser("measure sweep", DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add("benchmark", help="which benchmark")
    sizes = made.add_mutually_exclusive_group()
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
    add_set_option(made)
    add_data_option(made)
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="where the measurements are kept (default: results/sweep-<benchmark>-<scale>)",
    )
    add(
        "--against",
        type=Path,
        metavar="OTHER.json",
        help="sweep.json of another machine, to draw beside this one",
    )
    return made


@dataclass(frozen=True)
class Asked:
    """One size to measure; all that a process of its own needs to know."""

    benchmark: str
    scale: str
    measure: str
    size: int
    epochs: float | None
    overrides: tuple[str, ...]
    data_root: Path


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print a table, write tables and figure."""
    arguments = parser().parse_args(argv)
    if placement().world_size > 1:
        raise UserError("`cepheid measure sweep` measures one device: start it without a launcher")
    chosen = definition.load(_name(arguments), arguments.scale)
    measure = "training" if chosen.kind == "train" else "generation"
    _refuse_what_does_not_fit(arguments, chosen, measure)

    from reference.measure import published, sweep_records

    reported = published.load(chosen.name)
    text = arguments.batch_sizes if measure == "training" else arguments.images
    sizes = _sizes(text, sweep_records.SIZE_NAMES[measure], reported)
    other = sweep_records.read(arguments.against) if arguments.against else None
    asked = [
        Asked(chosen.name, chosen.scale, measure, size, arguments.epochs,
              tuple(arguments.overrides), arguments.data)
        for size in sizes
    ]  # fmt: skip
    output = arguments.output or Path("results", f"sweep-{chosen.name}-{chosen.scale}")
    return _sweep(chosen, asked, output, reported, other)


def _name(arguments: argparse.Namespace) -> str:
    name: str = arguments.benchmark
    return GENERATION_OF.get(name, name) if arguments.images else name


def _refuse_what_does_not_fit(
    arguments: argparse.Namespace, chosen: Definition, measure: str
) -> None:
    if measure == "training" and arguments.images:
        raise UserError(f"--images: {chosen.name} trains and generates nothing; see --batch-sizes")
    if measure == "generation" and arguments.batch_sizes:
        raise UserError(f"--batch-sizes: {chosen.name} generates images; see --images")
    if measure == "generation" and arguments.epochs is not None:
        raise UserError(f"--epochs: {chosen.name} generates images and has no epochs")
    if arguments.epochs is not None and not 0 < arguments.epochs <= 100:
        raise UserError(f"--epochs {arguments.epochs:g}: expected more than 0 and at most 100")
    from reference.run.config import parse_override

    for override in arguments.overrides:
        if parse_override(override)[0] == "global_batch_size":
            raise UserError("--set global_batch_size: a sweep takes --batch-sizes")


def _sizes(text: str | None, name: str, reported: "Published | None") -> tuple[int, ...]:
    """The sizes asked for, or those of the paper, each once and in order."""
    option = f"--{name.replace('_', '-')}{'s' if name == 'batch_size' else ''}"
    if text is None:
        if reported is None:
            raise UserError(f"{option} is missing: no paper reports times for this benchmark")
        return reported.in_figure
    numbers = text.split(",")
    if not all(number.strip().isdecimal() and 1 <= int(number) <= 10**7 for number in numbers):
        raise UserError(
            f"{option} {text}: expected numbers with commas between them, e.g. 2,4,8,16"
        )
    return tuple(sorted({int(number) for number in numbers}))


def _sweep(
    chosen: Definition,
    asked: Sequence[Asked],
    output: Path,
    reported: "Published | None",
    other: "Sweep | None",
) -> int:
    from rich.console import Console

    from reference.machine import energy
    from reference.measure import sweep_records
    from reference.measure.figures import sweep as sweep_figure

    console = Console(highlight=False, soft_wrap=True)
    configuration, has_gpu = _configuration(chosen, asked[0], console)
    if other:
        _refuse_what_cannot_be_compared(other, configuration)
    folder = sweep_records.opened(output, configuration)
    no_energy = energy.find_sensors(has_gpu=has_gpu).reason_for_none
    if no_energy:
        console.print(f"energy: {no_energy}", markup=False)
    failed = _measure_missing(asked, folder, console)
    points = folder.points()
    if not points:
        raise UserError(f"{output}: nothing could be measured, see above")
    made = sweep_records.Sweep(configuration, points, no_energy)
    folder.write_tables(made, reported)
    figure = folder.path / "sweep.png"
    sweep_figure.write(figure, made, reported, other)
    console.print(f"\n{_table(made, reported)}\n", markup=False)
    for name in ("sweep.json", "sweep.csv", "sweep.png"):
        console.print(f"{folder.path / name}", markup=False)
    if failed:
        console.print(f"not measured: {', '.join(map(str, failed))}; see above", markup=False)
    return EXIT_FINDINGS if failed else EXIT_FINE


def _configuration(
    chosen: Definition, asked: Asked, console: "Console"
) -> tuple[dict[str, Any], bool]:
    """What all sizes have in common, and whether there is a GPU; data are ready on return."""
    from reference.machine import system
    from reference.measure.trainings import HARDWARE
    from reference.run.config import configure, digest_of_code
    from reference.torch.distributed import start_ranks
    from tools.progress import prepare_data

    config = configure(
        chosen, division="open", overrides=asked.overrides, data_root=asked.data_root, seed=1
    )
    prepare_data(chosen, config.data_root, console)
    with start_ranks() as ranks:
        described = system.describe("local", ranks)
    threads = config.execution.threads
    if threads == "auto":
        threads = os.environ.get("OMP_NUM_THREADS", str(usable_processors()))
    configuration = {
        "benchmark": chosen.name,
        "scale": chosen.scale,
        "measure": asked.measure,
        "epochs": asked.epochs,
        "overrides": sorted(asked.overrides),
        "definition_digest": chosen.digest,
        "code_digest": digest_of_code(definition.ROOT, chosen.name),
        "parameters": chosen.model["parameters"],
        "system": {key: described[key] for key in (*HARDWARE, "framework")},
        "threads": int(threads),
    }
    return configuration, described["accelerator"] is not None


def _refuse_what_cannot_be_compared(other: "Sweep", configuration: Mapping[str, Any]) -> None:
    for key in ("benchmark", "scale", "measure"):
        if other.configuration[key] != configuration[key]:
            raise UserError(
                f"--against: its {key} is {other.configuration[key]}, expected "
                f"{configuration[key]} as here; only the same measure can be compared"
            )


def _measure_missing(
    asked: Sequence[Asked], folder: "SweepFolder", console: "Console"
) -> list[int]:
    """Measure what is not there yet; returns the sizes that could not be measured."""
    missing = folder.missing([one.size for one in asked])
    if not missing:
        console.print(f"{folder.path}: all sizes are there, nothing to measure", markup=False)
    failed = []
    for number, size in enumerate(missing, 1):
        one = next(one for one in asked if one.size == size)
        what = f"{_label(one.measure)} {size:,} ({number} of {len(missing)})"
        console.print(f"{what}: building, compiling, warming up")
        point = alone(measured, one)
        if isinstance(point, str):
            console.print(f"{what}: not measured: {point}", markup=False)
            failed.append(size)
            continue
        folder.keep(point)
        console.print(f"{what}: {_told(one.measure, point)}", markup=False)
    return failed


def alone(measure: "Callable[[Asked], Point | str]", asked: Asked) -> "Point | str":
    """What ``measure`` returns in a process of its own, or why that process came to no end."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_leave_at_once) as executor:
        try:
            return executor.submit(measure, asked).result()
        except BrokenProcessPool:
            return "its process was killed; was there enough memory?"


def _leave_at_once() -> None:
    """Ctrl-C is told by the process that the user started."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def measured(asked: Asked) -> "Point | str":
    """Measure one size in this process; where memory does not suffice, say so."""
    from rich.console import Console

    from reference.machine import energy
    from reference.measure import sweep
    from reference.run.config import configure
    from reference.torch.distributed import start_ranks
    from tools.progress import counted

    chosen = definition.load(asked.benchmark, asked.scale)
    overrides = list(asked.overrides)
    if asked.measure == "training":
        overrides.append(f"global_batch_size={asked.size}")
    else:  # this number at a time and no other, so that its memory is its own
        chosen = replace(chosen, generation=Generation((asked.size,), (1,), sweep.WARM_UP_IMAGES))
    config = configure(
        chosen, division="open", overrides=overrides, data_root=asked.data_root, seed=1
    )
    console = Console(highlight=False, soft_wrap=True)
    title = f"{_label(asked.measure)} {asked.size:,}"
    with start_ranks() as ranks:
        sensors = energy.find_sensors(has_gpu=ranks.device.type == "cuda")
        try:
            task = _created(chosen, config, ranks)
            unit = "steps" if asked.measure == "training" else "repetitions"
            with counted(title, unit, console) as on_progress:
                if asked.measure == "generation":
                    return sweep.generation(task, asked.size, ranks, sensors, on_progress)
                return sweep.training(
                    task, asked.size, ranks.device, sensors, asked.epochs, on_progress
                )
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            traceback.print_exc(limit=1)
            return "not enough memory"


def _created(chosen: Definition, config: Any, ranks: Any) -> Any:
    module = import_task(chosen, "torch")
    return getattr(module, "create_for_timing", module.create)(config, ranks)


def _label(measure: str) -> str:
    return "batch size" if measure == "training" else "images"


def _told(measure: str, point: "Point") -> str:
    first, third = point.middle_half_seconds
    if measure == "training":
        what = "seconds for 100 epochs"
        how = f"{point.counts['timed_epochs']:.3g} epochs timed"
    else:
        what, how = "seconds", f"{point.counts['repetitions']:.0f} repetitions"
    spread = f"middle half {_seconds(first)} to {_seconds(third)}"
    return f"{_seconds(point.seconds)} {what} ({spread}; {how})"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _table(made: "Sweep", reported: "Published | None") -> str:
    """A row for each size, with the reported times beside it."""
    from tabulate import tabulate

    rows = [_row(made.measure, point, reported) for point in made.points]
    return tabulate(rows, headers="keys", disable_numparse=True)


def _row(measure: str, point: "Point", reported: "Published | None") -> dict[str, str]:
    first, third = point.middle_half_seconds
    row = {
        _label(measure): f"{point.size:,}",
        "seconds": _seconds(point.seconds),
        "middle half": f"{_seconds(first)} to {_seconds(third)}",
    }
    row |= {name: _seconds(value) for name, value in point.parts_seconds.items()}
    if measure == "training":
        row["measured"] = f"{point.counts['timed_epochs']:.3g} of 100 epochs"
    row["images/s"] = _seconds(point.images_per_second)
    row["peak MiB"] = f"{point.peak_resident_bytes / 2**20:,.0f}"
    if point.peak_device_bytes is not None:
        row["device MiB"] = f"{point.peak_device_bytes / 2**20:,.0f}"
    if point.energy_joules is not None:
        row["kJ"] = f"{point.energy_joules / 1000:.3g}"
    for machine in reported.machines if reported else ():
        seconds = machine.seconds.get(point.size)
        row[f"{machine.name} (reported)"] = _seconds(seconds) if seconds else ""
    return row


if __name__ == "__main__":
    run_tool(main)
