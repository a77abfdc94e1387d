"""Times by batch size or number of images, as a paper reports them: `cepheid measure sweep`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import find_task_module
from cepheid.measure.engine import options
from cepheid.measure.engine.study import Help, Measured, Request, Study, make_table
from cepheid.measure.studies.sweep.jobs import BATCH_SIZE, Job
from cepheid.reference.machine.placement import find_placement
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.measure.engine.published import Published
    from cepheid.measure.studies.sweep.points import Point
    from cepheid.measure.studies.sweep.quality import QualityJob, QualityPoint
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
DEFAULT_SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Plan:
    """The sizes to measure, where they are recorded, and what is shown beside them."""

    jobs: Sequence[Job]
    output: Path
    published: "Published | None"
    other: "Sweep | None"


def plan(request: Request) -> Plan:
    """Return what is to be measured; refuse what cannot be, before anything is prepared."""
    definition, asked = prepare(request), request.arguments
    from cepheid.measure.engine.published import load_published
    from cepheid.measure.studies.sweep.records import read_sweep, refuse_other_measure

    published = load_published(definition.name)
    measure = "training" if definition.kind == "train" else "generation"
    sizes = pick_sizes(request)
    other = read_sweep(asked.against) if asked.against else None
    if other:
        this = {"benchmark": definition.name, "scale": definition.scale, "measure": measure}
        refuse_other_measure(other, this)
    what = definition.name, definition.scale, asked.framework, measure
    how = asked.epochs, tuple(asked.overrides), request.data_root
    jobs = [Job(*what, size, *how) for size in sizes]
    return Plan(jobs, request.find_folder(name_folder("sweep", asked.framework)), published, other)


def name_folder(what: str, framework: str) -> str:
    """Return the first part of the name of a folder with measurements."""
    return what if framework == "torch" else f"{what}-{framework}"


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
    """Raise UserError for options that do not fit the benchmark."""
    from cepheid.reference.run.config import parse_override

    if definition.kind == "train" and asked.images:
        raise UserError(
            f"--images: {definition.name} trains and does not generate images; give --batch-sizes, "
            f"or one of the benchmarks that generate: {', '.join(_list_generating())}"
        )
    if definition.kind == "generate" and asked.batch_sizes:
        raise UserError(f"--batch-sizes: {definition.name} generates images; give --images")
    if definition.kind == "generate" and asked.epochs is not None:
        raise UserError(f"--epochs: {definition.name} generates images and has no epochs")
    if definition.kind == "generate" and asked.quality:
        raise UserError(f"--quality: {definition.name} trains nothing")
    _refuse_beside_quality(asked)
    if asked.epochs is not None and not 0 < asked.epochs <= 100:
        raise UserError(f"--epochs {asked.epochs:g}: expected more than 0 and at most 100")
    if any(parse_override(override)[0] == BATCH_SIZE for override in asked.overrides):
        raise UserError(f"--set {BATCH_SIZE}: give the batch sizes with --batch-sizes")


def _refuse_beside_quality(asked: Any) -> None:
    """Raise UserError for options of the other kind of sweep, and for a senseless number."""
    for name in ("epochs", "against"):
        if asked.quality and getattr(asked, name) is not None:
            raise UserError(f"--{name}: it measures times; leave it out beside --quality")
    for name in ("samples", "seeds"):
        if not asked.quality and getattr(asked, name) is not None:
            raise UserError(f"--{name}: only --quality has it; fix: add --quality")


def _list_generating() -> list[str]:
    return [
        name
        for name in definitions.names()
        if definitions.load(name, definitions.scales(name)[0]).kind == "generate"
    ]


def pick_sizes(request: Request) -> tuple[int, ...]:
    """Return the sizes that the user asks for, else those of the paper."""
    from cepheid.measure.engine.published import load_published

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
    """Measure the sizes that are not recorded, and write tables and figure of all."""
    from cepheid.measure.engine import own_process
    from cepheid.measure.engine.recorded_points import measure_missing, tell_failed
    from cepheid.measure.studies.sweep import jobs as sweep_jobs
    from cepheid.measure.studies.sweep import records
    from cepheid.measure.studies.sweep.figure import draw_sweep
    from cepheid.reference.machine import energy

    observer, published, other = request.observer, wanted.published, wanted.other
    first = wanted.jobs[0]
    configuration, has_gpu = sweep_jobs.prepare_sweep(request.definition, first, observer)
    folder = records.open_folder(wanted.output, configuration)
    no_energy = energy.find_sensors(has_gpu=has_gpu).reason_for_none
    if no_energy:
        observer.tell(f"energy: {no_energy}")
    failed = measure_missing(
        wanted.jobs,
        folder,
        lambda job: own_process.run_alone(measure_alone, job, request.open_display),
        observer,
        _describe_point,
    )
    points = folder.load_points()
    if not points:
        raise UserError(f"{wanted.output}: no size could be measured; the lines above say why")
    sweep = records.Sweep(configuration, points, no_energy)
    folder.write_tables(sweep, published, other)
    draw_sweep(folder.path / "sweep.png", sweep, published, other)
    label = sweep.size_name.replace("_", " ")
    rows = [
        {label: f"{point.size:,}"} | _make_row(point) | _compare(point, published, other)
        for point in points
    ]
    files = ("sweep.json", "sweep.csv", "sweep.png")
    notes = [*(f"written: {folder.path / name}" for name in files), *tell_failed(failed)]
    return Measured(tables=[make_table("", rows)], notes=notes, is_fine=not failed)


def measure_alone(job: Job, open_display: Any) -> "Point":
    """Measure one size in this process, which was started for it."""
    from cepheid.measure.studies.sweep.jobs import measure_size

    return measure_size(job, open_display(None))


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


@dataclass(frozen=True)
class QualityPlan:
    """The trainings to make, and where they are recorded."""

    jobs: "Sequence[QualityJob]"
    seeds: Sequence[int]
    output: Path


def plan_quality(request: Request) -> QualityPlan:
    """Return the trainings at each batch size, for each seed; refuse what cannot be trained."""
    from cepheid.measure.studies.sweep.quality import DECAY, QualityJob

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
    what = definition.name, definition.scale, asked.framework
    how = samples, tuple(asked.overrides), request.data_root
    jobs = [QualityJob(*what, size, seed, *how) for seed in seeds for size in sizes]
    return QualityPlan(jobs, seeds, request.find_folder(name_folder("quality", asked.framework)))


def measure_quality(request: Request, wanted: QualityPlan) -> Measured:
    """Train what is not recorded, and write tables and figure of all."""
    from cepheid.measure.engine import own_process
    from cepheid.measure.engine.recorded_points import measure_missing, tell_failed
    from cepheid.measure.studies.sweep import quality
    from cepheid.measure.studies.sweep.quality_figure import draw_quality

    observer, output = request.observer, wanted.output
    configuration = quality.prepare_quality(request.definition, wanted.jobs[0], observer)
    failed = []
    for seed, folder in quality.open_folders(output, configuration, wanted.seeds).items():
        failed += measure_missing(
            [job for job in wanted.jobs if job.seed == seed],
            folder,
            lambda job: own_process.run_alone(train_alone, job, request.open_display),
            observer,
            _describe_quality,
        )
    points = quality.load_all(output)
    if not points:
        return Measured(notes=tell_failed(failed), is_fine=not failed)
    sweep = quality.QualitySweep(configuration, points)
    quality.write_tables(output, sweep)
    draw_quality(output / "quality.png", request.definition, sweep)
    rows = [
        {"batch size": size, "seeds": len(sweep.list_values(sweep.metrics[0], size))}
        | {
            metric: quality.describe_spread(sweep.list_values(metric, size))
            for metric in sweep.metrics
        }
        for size in sweep.sizes
    ]
    files = ("quality.json", "quality.csv", "quality.png")
    notes = [*(f"written: {output / name}" for name in files), *tell_failed(failed)]
    return Measured(tables=[make_table("", rows)], notes=notes, is_fine=not failed)


def train_alone(job: "QualityJob", open_display: Any) -> "QualityPoint":
    """Train in this process, which was started for it."""
    from cepheid.measure.studies.sweep.quality import train_once

    return train_once(job, open_display(None))


def _describe_quality(point: "QualityPoint") -> str:
    values = ", ".join(f"{name} {value:.4g}" for name, value in point.quality.items())
    return f"{values} after {point.samples:,} samples, {point.seconds:.0f} s"


QUALITY = Study("sweep", Help(DESCRIPTION, EXAMPLES), (), plan_quality, measure_quality)
STUDY = Study(
    name="sweep",
    help=Help(DESCRIPTION, EXAMPLES),
    options=(
        options.Option("benchmark", {"help": "which benchmark"}),
        options.offer_numbers(
            "--batch-sizes",
            {"metavar": "B,…",
             "help": "batch sizes to train with (default: those of the paper's figure)"},
            example="2,4,8,16",
            group="sizes",
        ),
        options.offer_numbers(
            "--images",
            {"metavar": "N,…",
             "help": "numbers of images to generate (default: those of the paper's figure)"},
            example="1,10,100",
            group="sizes",
        ),
        options.Option(
            "--scale",
            {"default": "full", "help": "full (default: the paper's network) or mini"},
        ),
        options.Option(
            "--epochs",
            {"type": float, "metavar": "E",
             "help": "how many of the 100 epochs to run, e.g. 0.5 (default: what takes a minute)"},
        ),
        options.Option(
            "--framework",
            {"default": "torch", "help": "torch (default) or keras, where the benchmark has it"},
        ),
        options.Option(
            "--quality",
            {"action": "store_true",
             "help": "train to the same number of samples at each batch size, and draw the "
             "quality"},
        ),
        options.Option(
            "--samples",
            {"type": int, "metavar": "N",
             "help": "of --quality (default: the samples over which the learning rate decays)"},
            least=1,
            most=options.LARGEST_NUMBER,
        ),
        options.offer_numbers(
            "--seeds", {"metavar": "S,…", "help": "of --quality (default: 1,2,3)"}, example="1,2,3"
        ),
        options.offer_settings(),
        options.DATA,
        options.offer_folder("sweep"),
        options.Option(
            "--against",
            {"type": Path, "metavar": "OTHER.json",
             "help": "sweep.json of another machine, to draw beside this one"},
        ),
    ),
    arms=plan,
    measure=measure,
    others={"quality": QUALITY},
    is_timed=True,
)  # fmt: skip
