"""Times by batch size or number of images, as a paper reports them: `cepheid measure sweep`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cepheid.benchmarks.registry import find_task_module
from cepheid.measure.engine import options, own_process
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.recorded_points import (
    PointFolder,
    Shown,
    finish,
    measure_missing,
    open_folder,
)
from cepheid.measure.engine.study import Measured, Request, Study
from cepheid.measure.studies.sweep import quality, records
from cepheid.measure.studies.sweep.measures import BATCH_SIZE, DECAY, Job, Point, measure_size
from cepheid.measure.studies.sweep.quality import QualityPoint
from cepheid.measure.studies.sweep.records import Sweep, load_published, read_sweep
from cepheid.reference.machine import energy
from cepheid.reference.machine.placement import find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError

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
folder then has sweep.json and the figure sweep.png (quality.json and so on).
"""
EXAMPLES = """\
examples:
  cepheid measure sweep galaxy_shape --batch-sizes 2,4,8,10,12,14
  cepheid measure sweep galaxy_shape --scale mini --batch-sizes 4,32 --epochs 0.5
  cepheid measure sweep galaxy_shape --epochs 100 --set precision=fp32      as in the paper
  cepheid measure sweep galaxy_shape --against ../other/sweep.json          a second machine
  cepheid measure sweep galaxy_shape --framework keras                      the paper's framework
  cepheid measure sweep galaxy_shape --scale mini --quality --seeds 1,2,3
  cepheid measure sweep galaxy_generation --images 1,10,100,500,1000,5000

exit codes: 0 fine; 1 a size could not be measured; 2 wrong use
"""
DEFAULT_SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Plan:
    """The sizes to measure, and what is shown beside them: another machine's sweep."""

    jobs: Sequence[Job]
    other: Sweep | None = None


def plan(request: Request) -> Plan:
    """Return what is to be measured; refuse what cannot be, before anything is prepared."""
    definition, asked = prepare(request), request.arguments
    measure = "training" if definition.kind == "train" else "generation"
    what = definition.name, definition.scale, asked.framework, measure
    how = tuple(asked.overrides), request.data_root, asked.epochs
    jobs, other = [Job(*what, size, *how) for size in pick_sizes(request)], None
    if asked.against:
        this = {"benchmark": definition.name, "scale": definition.scale, "measure": measure}
        other = read_sweep(asked.against, this)
    return Plan(jobs, other)


def plan_quality(request: Request) -> Plan:
    """Return the trainings at each batch size, for each seed; refuse what cannot be trained."""
    definition, asked = prepare(request), request.arguments
    sizes, seeds = pick_sizes(request), asked.seeds or DEFAULT_SEEDS
    decay = definition.hyperparameters.get(DECAY)
    usual = int(decay.default) if decay and decay.default else definition.timing.max_samples
    samples = asked.samples or usual
    if max(sizes) > samples:
        raise UserError(
            f"--batch-sizes: {max(sizes):,} is more than the {samples:,} samples of each training; "
            "fix: leave it out, or give more --samples"
        )
    what = definition.name, definition.scale, asked.framework, "quality"
    how = tuple(asked.overrides), request.data_root
    return Plan(
        [Job(*what, size, *how, samples=samples, seed=seed) for seed in seeds for size in sizes]
    )


def prepare(request: Request) -> Definition:
    """Return the definition; raise UserError for options that do not fit it."""
    if find_placement().world_size > 1:
        raise UserError("`cepheid measure sweep` measures one device: start it without a launcher")
    definition, asked = request.definition, request.arguments
    _refuse_options(asked, definition)
    find_task_module(definition, asked.framework)
    extras.require_for_runs(definition.extras, asked.framework)
    extras.require("matplotlib")
    return definition


def _refuse_options(asked: Any, definition: Definition) -> None:
    """Raise UserError for options that do not fit the benchmark, or each other."""
    from cepheid.reference.run.config import parse_override

    name, generates = definition.name, definition.kind == "generate"
    if not generates and asked.images:
        generating = [
            each
            for each in definitions.names()
            if definitions.load(each, definitions.scales(each)[0]).kind == "generate"
        ]
        raise UserError(
            f"--images: {name} trains and does not generate images; give --batch-sizes, "
            f"or one of the benchmarks that generate: {', '.join(generating)}"
        )
    for option, why in (
        ("batch_sizes", "generates images; give --images"),
        ("epochs", "generates images and has no epochs"),
        ("quality", "trains nothing"),
    ):
        if generates and getattr(asked, option) not in (None, False):
            raise UserError(f"--{option.replace('_', '-')}: {name} {why}")
    for other in ("epochs", "against"):
        if asked.quality and getattr(asked, other) is not None:
            raise UserError(f"--{other}: it measures times; leave it out beside --quality")
    if asked.epochs is not None and not 0 < asked.epochs <= 100:
        raise UserError(f"--epochs {asked.epochs:g}: expected more than 0 and at most 100")
    if any(parse_override(override)[0] == BATCH_SIZE for override in asked.overrides):
        raise UserError(f"--set {BATCH_SIZE}: give the batch sizes with --batch-sizes")


def pick_sizes(request: Request) -> tuple[int, ...]:
    """Return the sizes that the user asks for, else those of the paper."""
    asked, is_training = request.arguments, request.definition.kind == "train"
    sizes: tuple[int, ...] | None = asked.batch_sizes if is_training else asked.images
    if sizes:
        return sizes
    published = load_published(request.definition.name)
    if published is None:
        option, example = ("--batch-sizes", "8,16,32") if is_training else ("--images", "1,10,100")
        raise UserError(
            f"{option} is missing: no paper reports times for this benchmark; fix: give it, "
            f"e.g. {option} {example}"
        )
    return published.in_figure


def measure(request: Request, wanted: Plan) -> Measured:
    """Measure the sizes that are not recorded, and show all."""
    folder, configuration, has_gpu = _open(request, "sweep", wanted, Point)
    no_energy = energy.find_sensors(has_gpu=has_gpu).reason_for_none
    failed = _measure_missing(request, wanted, folder, measure_size)
    published = load_published(request.definition.name)
    sweep = Sweep(configuration, folder.load_points(), no_energy, published, wanted.other)
    shown = Shown(sweep.list_columns(), partial(records.draw_sweep, sweep))
    return finish("sweep", folder, sweep.describe(), shown, failed)


def measure_quality(request: Request, wanted: Plan) -> Measured:
    """Train what is not recorded, and show all."""
    folder, configuration, _ = _open(request, "quality", wanted, QualityPoint)
    failed = _measure_missing(request, wanted, folder, quality.train_once)
    points = folder.load_points()
    draw = partial(quality.draw_quality, request.definition, configuration, points)
    shown = Shown(quality.list_columns(points), draw, rows=quality.group_by_size(points))
    return finish("quality", folder, {"configuration": configuration}, shown, failed)


def _open(
    request: Request, what: str, wanted: Plan, kind: type[Any]
) -> tuple[PointFolder[Any], dict[str, Any], bool]:
    """Return the folder of all points, their configuration, and whether there is a GPU."""
    framework = request.arguments.framework
    folder = request.find_folder(what if framework == "torch" else f"{what}-{framework}")
    configuration, has_gpu = wanted.jobs[0].prepare(request.definition, request.observer)
    return open_folder(folder, configuration, kind, "sweep"), configuration, has_gpu


def _measure_missing(
    request: Request, wanted: Plan, folder: PointFolder[Any], function: Callable[..., Any]
) -> list[str]:
    """Measure each missing size in a process of its own; return those that failed."""

    def run(job: Job) -> Any:
        return own_process.run_alone(function, job, request.open_display)

    return measure_missing(wanted.jobs, folder, run, request.observer)


STUDY = Study(
    "sweep",
    plan,
    measure,
    is_timed=True,
    others=(Study("quality", plan_quality, measure_quality),),
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        Option("benchmark", "which benchmark"),
        options.offer_numbers(
            "--batch-sizes B,…", "batch sizes to train with (default: those of the paper's "
            "figure)", "2,4,8,16", group="sizes",
        ),
        options.offer_numbers(
            "--images N,…", "numbers of images to generate (default: those of the paper's figure)",
            "1,10,100", group="sizes",
        ),
        Option("--scale", "full (default: the paper's network) or mini", default="full"),
        Option("--epochs E", "how many of the 100 epochs to run, e.g. 0.5 (default: what takes a "
               "minute)", float),
        Option("--framework", "torch (default) or keras, where the benchmark has it",
               default="torch"),
        Option("--quality", "train to the same number of samples at each batch size, and draw the "
               "quality", bool),
        Option("--samples N", "of --quality (default: the samples over which the learning rate "
               "decays)", int, least=1, most=options.LARGEST_NUMBER, needs="--quality"),
        replace(options.offer_numbers("--seeds S,…", "of --quality (default: 1,2,3)", "1,2,3"),
                needs="--quality"),
        options.offer_settings(),
        options.DATA,
        *options.DEVICES,
        options.offer_folder("sweep"),
        Option("--against OTHER.json", "sweep.json of another machine, to draw beside this one",
               Path),
    ),
)  # fmt: skip
