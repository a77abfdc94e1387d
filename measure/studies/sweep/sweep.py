"""Times by batch size or number of images, as a paper reports them: `cepheid measure sweep`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cepheid.benchmarks.registry import find_task_module
from cepheid.measure.engine import own_process
from cepheid.measure.engine.options import read_command
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
    **read_command("sweep"),
)
