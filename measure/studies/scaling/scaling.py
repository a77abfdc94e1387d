"""How throughput grows with the number of ranks, and what limits it: `cepheid measure scaling`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine import options
from cepheid.measure.engine.study import Column, Help, Measured, Request, Study
from cepheid.measure.studies.scaling.points import INPUTS, STRONG, TOGETHER, WEAK, spread
from cepheid.measure.studies.scaling.tasks import BATCH_SIZE, Job
from cepheid.reference.machine.placement import find_placement
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors

if TYPE_CHECKING:
    from cepheid.measure.engine.recorded_points import PointFolder
    from cepheid.measure.studies.scaling.points import Point, Spread
    from cepheid.reference.torch.ranks.distributed import TorchRanks

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


def plan(request: Request) -> list[Job]:
    """Return the measurements to make; raise UserError for what cannot be measured."""
    from cepheid.reference.run.config import parse_override

    definition, asked = request.require_extras(), request.arguments
    launched = find_placement().world_size
    counts = _pick_ranks(asked.ranks, launched)
    request.require_training(
        f" in steps; `cepheid measure sweep {definition.name}` measures how fast it is"
    )
    settings = {parse_override(override)[0] for override in asked.overrides}
    if BATCH_SIZE in settings:
        raise UserError(f"--set {BATCH_SIZE}: give the samples of a step with --batch-size")
    if not 0 < asked.turn_seconds <= LONGEST_TURN_SECONDS:
        raise UserError(
            f"--turn-seconds {asked.turn_seconds:g}: expected more than 0 and at most "
            f"{LONGEST_TURN_SECONDS}"
        )
    batch = asked.batch_size
    if batch is None:
        batch = int(definition.hyperparameters[BATCH_SIZE].default)
    if not 1 <= batch <= definition.train_samples:
        raise UserError(
            f"--batch-size {batch}: expected 1 to {definition.train_samples:,}, the samples that "
            "there are to train on"
        )
    uneven = [count for count in counts if asked.strong and batch % count]
    if uneven:
        raise UserError(
            f"--ranks {uneven[0]}: {batch} samples cannot be shared evenly by so many ranks: "
            f"choose a --batch-size that is a multiple of {uneven[0]}, or leave out --strong"
        )
    overrides = tuple(asked.overrides)
    if "threads" not in settings:
        overrides += ("threads=1",)
    inputs = INPUTS if asked.input == "both" else (asked.input,)
    mode = STRONG if asked.strong else WEAK
    return [
        Job(
            definition.name,
            definition.scale,
            count,
            mode,
            inputs,
            batch,
            overrides,
            request.data_root,
            asked.rounds,
            asked.turn_seconds,
            0 if launched > 1 else max(1, usable_processors() // counts[-1]),
        )
        for count in counts
    ]


def _pick_ranks(counts: tuple[int, ...] | None, launched: int) -> tuple[int, ...]:
    """Return the numbers of ranks, each once and in order."""
    if launched > 1:
        if counts not in (None, (launched,)):
            given = ",".join(map(str, counts or ()))
            raise UserError(
                f"--ranks {given}: the launcher has started {launched} ranks; leave --ranks out, "
                "or start without a launcher"
            )
        return (launched,)
    places, what = _count_places()
    if counts is None:
        return tuple(2**power for power in range(places.bit_length()))
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


def measure(request: Request, jobs: Sequence[Job]) -> Measured:
    """Measure each number of ranks that is not recorded, or the ranks of a launcher."""
    folder = request.find_folder("scaling")
    if find_placement().world_size > 1:
        return _measure_launched(request, jobs[0], folder)
    return _measure_here(request, jobs, folder)


def _measure_here(request: Request, jobs: Sequence[Job], output: Path) -> Measured:
    """Start the ranks of each number that is not recorded yet."""
    from cepheid.measure.engine import own_process
    from cepheid.measure.engine.recorded_points import measure_missing
    from cepheid.measure.studies.scaling.ranks import measure_ranks
    from cepheid.measure.studies.scaling.records import open_folder, prepare_scaling
    from cepheid.reference.torch.ranks.distributed import start_ranks

    with start_ranks() as alone:
        configuration = prepare_scaling(jobs[0], alone, request.observer)
    folder = open_folder(output, configuration)

    def measure_job(job: Job) -> "Point":
        return own_process.run_on_ranks(job.ranks, measure_ranks, job)

    failed = measure_missing(jobs, folder, measure_job, request.observer, _describe_point)
    return _describe(folder, configuration, failed)


def _measure_launched(request: Request, job: Job, output: Path) -> Measured:
    """Measure the ranks of a launcher; the first one prepares the data and writes."""
    from cepheid.measure.studies.scaling.ranks import measure_ranks
    from cepheid.measure.studies.scaling.records import open_folder, prepare_scaling

    configuration: dict[str, Any] = {}

    def prepare(ranks: "TorchRanks") -> None:
        configuration.update(prepare_scaling(job, ranks, request.observer))
        open_folder(output, configuration)  # refuses another measurement before this one is made

    point = measure_ranks(job, prepare)
    if not configuration:
        return Measured()
    folder = open_folder(output, configuration)
    folder.keep(point)
    return _describe(folder, configuration, ())


def _describe(
    folder: "PointFolder[Point]", configuration: Mapping[str, Any], failed: Sequence[int]
) -> Measured:
    """Write scaling.json and the figure; return the points with what they say about input."""
    from cepheid.measure.engine.recorded_points import name_machine, tell_failed
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
    notes = [sentence for point in points if (sentence := _judge_input(point))]
    notes += [f"written: {folder.path / name}" for name in (FILE, FIGURE)]
    return Measured(points, f"\n{title}", notes=[*notes, *tell_failed(failed)], is_fine=not failed)


def list_columns(_: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns for the inputs that were measured."""
    inputs = measured.rows[0].inputs if measured.rows else ()
    shares = measured.rows[0].shares if measured.rows else ()
    return (
        Column("ranks", lambda point: point.ranks),
        Column("batch", lambda point: point.batch_size, "{:,}".format),
        Column("samples/s", lambda point: _find_rate(point), _format_rate),
        Column(
            "speed-up",
            lambda point: point.ranks * point.efficiency(point.inputs[0]).median,
            "{:.2f}".format,
        ),
        *(_list_efficiency(kind) for kind in inputs),
        Column("ceiling", lambda point: point.ceiling(), _format_spread),
        *(_list_share(name) for name in shares),
        Column("real/synthetic", lambda point: point.real_over_synthetic(), _format_spread),
    )


def _list_efficiency(kind: str) -> Column:
    return Column(f"efficiency, {kind}", lambda point: point.efficiency(kind), _format_spread)


def _list_share(name: str) -> Column:
    return Column(name, lambda point: point.shares[name], "{:.1%}".format)


def _find_rate(point: "Point") -> "Spread":
    return spread(point.rates(TOGETHER, point.inputs[0]))


def _format_rate(rate: "Spread") -> str:
    return f"{rate.median:,.4g} ({rate.first_quartile:,.4g} to {rate.third_quartile:,.4g})"


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
    efficiency = _format_spread(point.efficiency(point.inputs[0]))
    return f"{_find_rate(point).median:,.4g} samples/s, efficiency {efficiency}"


STUDY = Study(
    name="scaling",
    help=Help(DESCRIPTION, EXAMPLES),
    options=(
        *options.offer_benchmark("which benchmark; it must train"),
        options.offer_numbers(
            "--ranks",
            {"metavar": "N,…",
             "help": "numbers of ranks to start here (default: 1, 2, 4, … up to the processors or "
             "GPUs)"},
            example="1,2,4",
            most=MOST_RANKS,
        ),
        options.Option(
            "--input",
            {"choices": (*INPUTS, "both"), "default": "both",
             "help": "real data, synthetic ones or both in turns (default); synthetic needs no "
             "data set"},
        ),
        options.Option(
            "--strong",
            {"action": "store_true",
             "help": "all ranks share one batch (default: each has one)"},
        ),
        options.Option(
            "--batch-size",
            {"type": int, "metavar": "B",
             "help": "samples of each rank in a step, with --strong of all (default: the "
             "definition's)"},
        ),
        options.offer_rounds(5),
        options.Option(
            "--turn-seconds",
            {"type": float, "default": 1.0, "metavar": "S",
             "help": "how long each way of training takes in a turn, at least two steps "
             "(default: 1)"},
        ),
        options.offer_settings(),
        options.DATA,
        options.offer_folder("scaling"),
    ),
    arms=plan,
    measure=measure,
    columns=list_columns,
    is_timed=True,
)  # fmt: skip
