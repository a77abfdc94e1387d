"""How throughput grows with the number of ranks, and what limits it: `cepheid measure scaling`."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine import own_process
from cepheid.measure.engine.figures import OURS, REPORTED, draw_figure, find_bars
from cepheid.measure.engine.noise import INPUTS, REAL
from cepheid.measure.engine.noise import SYNTHETIC as NOISE
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.provenance import find_commit
from cepheid.measure.engine.recorded_points import (
    PointFolder,
    Shown,
    finish,
    measure_missing,
    name_machine,
    open_folder,
)
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.studies.scaling.points import (
    BATCH_SIZE,
    INDEPENDENT,
    SHARES,
    STRONG,
    TOGETHER,
    WEAK,
    Job,
    Point,
    Spread,
    spread,
)
from cepheid.reference.machine.placement import find_placement
from cepheid.rules.errors import UserError
from cepheid.rules.host import usable_processors

if TYPE_CHECKING:
    from cepheid.reference.torch.ranks.distributed import TorchRanks

IMAGES = 500  # that each rank generates in a step, by default
LONGEST_TURN_SECONDS = 600
WHAT = "measurement of scaling"
SYNTHETIC, CEILING = "C1", "C3"
COLOURS = ("C4", OURS, "C2", CEILING, REPORTED)  # of the shares, in their order


def plan(request: Request) -> list[Job]:
    """Return the measurements to make; raise UserError for what cannot be measured."""
    from cepheid.reference.run.config import parse_override

    definition, asked = request.definition, request.arguments
    generation = definition.generation
    if generation is None:
        request.require_extras()
    elif asked.input == REAL:
        raise UserError(
            f"--input {REAL}: {definition.name} generates from noise and reads no data; fix: "
            "leave --input out"
        )
    launched = find_placement().world_size
    counts = _pick_ranks(asked.ranks, launched)
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
        default = definition.hyperparameters.get(BATCH_SIZE)
        batch = int(default.default) if default else IMAGES
    most, why = definition.train_samples, "the samples that there are to train on"
    if generation:
        most, why = max(generation.counts), "the most images that a run makes at a time"
    if not 1 <= batch <= most:
        raise UserError(f"--batch-size {batch}: expected 1 to {most:,}, {why}")
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
    if generation:
        inputs = (NOISE,)
    mode = STRONG if asked.strong else WEAK
    processors = 0 if launched > 1 else max(1, usable_processors() // counts[-1])
    what, how = (definition.name, definition.scale), (overrides, request.data_root)
    turns = asked.rounds, asked.turn_seconds, processors
    return [Job(*what, count, mode, inputs, batch, *how, *turns) for count in counts]


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
    from cepheid.reference.torch.ranks.choice import list_accelerators

    count = len(list_accelerators())
    return (count, "accelerators") if count else (usable_processors(), "processors")


def measure(request: Request, jobs: Sequence[Job]) -> Measured:
    """Measure each number of ranks that is not recorded, or the ranks of a launcher."""
    is_launched = find_placement().world_size > 1
    return _measure_launched(request, jobs[0]) if is_launched else _measure_here(request, jobs)


def _measure_here(request: Request, jobs: Sequence[Job]) -> Measured:
    """Start the ranks of each number that is not recorded yet."""
    from cepheid.measure.studies.scaling.ranks import measure_ranks
    from cepheid.reference.torch.ranks.distributed import start_ranks

    with start_ranks() as alone:
        configuration = jobs[0].prepare(alone, request.observer)
    folder = open_folder(request.find_folder("scaling"), configuration, Point, WHAT)

    def measure_job(job: Job) -> Point:
        return own_process.run_on_ranks(job.ranks, measure_ranks, job)

    failed = measure_missing(jobs, folder, measure_job, request.observer)
    return _show(folder, configuration, failed, request.command)


def _measure_launched(request: Request, job: Job) -> Measured:
    """Measure the ranks of a launcher; the first one prepares the data and writes."""
    from cepheid.measure.studies.scaling.ranks import measure_ranks

    configuration: dict[str, Any] = {}
    output = request.find_folder("scaling")

    def prepare(ranks: "TorchRanks") -> None:
        configuration.update(job.prepare(ranks, request.observer))
        # Refuses another measurement before this one is made.
        open_folder(output, configuration, Point, WHAT)

    point = measure_ranks(job, prepare)
    if not configuration:
        return Measured()
    folder = PointFolder(output, Point)
    folder.keep(point)
    return _show(folder, configuration, (), request.command)


def _show(
    folder: PointFolder[Point],
    configuration: Mapping[str, Any],
    failed: Sequence[str],
    command: str,
) -> Measured:
    """Write scaling.json and the figure; return the points with what they say about input.

    The last ``command`` that measured a point stands in the file, and the commit of the code today.
    """
    points = folder.load_points()
    kind = "the same batch for all" if configuration["mode"] == STRONG else "a batch for each rank"
    title = (
        f"{configuration['benchmark']}, {configuration['scale']} scale: {configuration['mode']} "
        f"scaling ({kind}), each rank on {name_machine(configuration)}"
    )
    notes = [sentence for point in points if (sentence := _judge_input(point))]
    draw = partial(draw_scaling, title, points)
    shown = Shown(list_columns(points), draw, f"\n{title}", notes)
    facts = {"configuration": configuration, "command": command, "commit": find_commit()}
    return finish("scaling", folder, facts, shown, failed)


def list_columns(points: Sequence[Point]) -> Sequence[Column]:
    """Return the columns for the inputs that were measured, which are the keys of the file too."""
    return (
        Column("ranks", "ranks", key="ranks"),
        Column("batch", "batch_size", "{:,}", "batch_size"),
        Column(None, lambda point: point.inputs[0], key="input"),
        Column("samples/s", lambda point: spread(point.rates(TOGETHER, point.inputs[0])),
               partial(Spread.format, form=",.4g"), "samples_per_second"),
        Column("speed-up", lambda point: point.ranks * point.efficiency(point.inputs[0]).median,
               "{:.2f}", "speed_up"),
        Column(None, lambda point: {each: point.efficiency(each) for each in point.inputs},
               key="efficiency"),
        *(
            Column(f"efficiency, {kind}", partial(Point.efficiency, kind=kind), str)
            for kind in points[0].inputs
        ),
        Column("ceiling", Point.ceiling, str, "ceiling"),
        *(Column(name, partial(_find_share, name), "{:.1%}") for name in points[0].shares),
        Column(None, "shares", key="shares"),
        Column("real/synthetic", Point.real_over_synthetic, str, "real_over_synthetic"),
        Column(None, "is_input_bound", key="is_input_bound"),
    )  # fmt: skip


def _find_share(name: str, point: Point) -> float:
    return point.shares[name]


def _judge_input(point: Point) -> str:
    ratio = point.real_over_synthetic()
    if ratio is None:
        return ""
    verdict = "input binds" if point.is_input_bound else "input does not bind"
    ranks = f"{point.ranks} rank{'s' if point.ranks > 1 else ''}"
    return f"{ranks}: {verdict}: real data reach {ratio.median:.0%} of the rate of synthetic data"


def draw_scaling(title: str, points: Sequence[Point], path: Path) -> None:
    """Draw rates against ideal ones on the left, shares of a step on the right.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    with draw_figure(path, columns=2) as (figure, (left, right)):
        sizes = [point.ranks for point in points]
        kinds = points[0].inputs
        for kind, colour in zip(("real", "synthetic"), (OURS, SYNTHETIC), strict=True):
            if kind in kinds:
                rates = [spread(point.rates(TOGETHER, kind)) for point in points]
                bars = find_bars([(r.median, r.first_quartile, r.third_quartile) for r in rates])
                medians, look = [rate.median for rate in rates], {"fmt": "o-", "capsize": 3}
                left.errorbar(sizes, medians, bars, label=f"{kind} data", color=colour, **look)
        bounded = [point for point in points if point.ceiling()]
        if bounded:
            values = [spread(point.rates(INDEPENDENT, kinds[-1])).median for point in bounded]
            places = [point.ranks for point in bounded]
            left.plot(places, values, "^", color=CEILING, label="independent ranks")
        one = spread(points[0].rates(TOGETHER, kinds[0])).median / points[0].ranks
        left.plot(sizes, [one * size for size in sizes], ":", color=REPORTED, label="ideal")
        left.set_ylim(bottom=0)
        left.set(title="throughput: medians, middle half of the turns", xticks=sizes)
        left.set(xlabel="ranks", ylabel="samples per second")
        left.legend()
        names = [str(size) for size in sizes]
        base = [0.0] * len(points)
        for name, colour in zip((*SHARES, "other"), COLOURS, strict=True):
            heights = [100 * point.shares[name] for point in points]
            right.bar(names, heights, bottom=base, color=colour, label=name, width=0.6)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        right.set(title="a profiled step, mean of the ranks", xlabel="ranks", ylabel="% of a step")
        right.legend()
        figure.suptitle(title)


STUDY = Study("scaling", plan, measure, is_timed=True, **read_command("scaling"))
