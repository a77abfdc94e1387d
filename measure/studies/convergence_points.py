"""How many samples the reference needs to its targets, by batch size (rule T21): `cepheid rcp`."""

from collections.abc import Callable, Sequence

from cepheid.compliance.score import convergence
from cepheid.compliance.score.convergence import Expected
from cepheid.measure.engine import trainings
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.provenance import lock_record
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.reference.run.config import configure, parse_override
from cepheid.rules import evidence, rcp
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import Curve
from cepheid.rules.rcp import BATCH_SIZE, Point, ReferencePoints, Run


def list_trainings(request: Request) -> list[Training]:
    """Return the runs that are wanted at each batch size; none where the user asks for none.

    Raises UserError where a batch size was measured with other hyperparameters.
    """
    definition, asked = request.definition, request.arguments
    request.require_training(
        ", so it has no reference convergence points (rule T21 is for training)"
    )
    if asked.overrides and not asked.batch_sizes:
        raise UserError("--set needs --batch-size B: it is for a measurement")
    if any(parse_override(override)[0] == BATCH_SIZE for override in asked.overrides):
        raise UserError(f"--set {BATCH_SIZE}: give the batch sizes with --batch-size")
    if not asked.batch_sizes:
        return []
    request.require_extras()
    points, wanted = _load_points(definition), []
    for size in dict.fromkeys(asked.batch_sizes):
        overrides = [*asked.overrides, f"{BATCH_SIZE}={size}"]
        for seed in range(1, asked.runs + 1):
            config = configure(
                definition, overrides=overrides, data_root=request.data_root, seed=seed
            )
            wanted.append(Training(f"batch size {size}", CORRECT, config))
        if point := points.at(size):
            _refuse_other_hyperparameters(point, wanted[-1], definition)
    return wanted


def measure(request: Request, wanted: Sequence[Training]) -> Measured:
    """Make the runs that are not recorded for this definition, and return all points.

    Each is recorded as it ends. A run with all defaults that ``evidence.json`` has is taken from
    there.
    """
    definition = request.definition
    points, missing = _load_points(definition), []
    for training in wanted:
        point = points.at(training.config.global_batch_size)
        if point and training.config.seed in {run.seed for run in point.runs}:
            continue
        if not request.arguments.overrides and (found := _find_in_evidence(definition, training)):
            keep(definition, training, found)
        else:
            missing.append(training)
    if missing:
        finished = trainings.train_all(definition, missing, request.data_root, request.observer)
        for training, curve in finished:
            keep(definition, training, curve)
    return _describe(definition)


def _describe(definition: Definition) -> Measured:
    """Return all that is recorded, with the problems of it."""
    where = f"{definition.name}, {definition.scale} scale"
    recorded_points = rcp.load(definition.name, definition.scale)
    if recorded_points is None:
        return Measured(notes=[f"{where}: nothing is recorded yet; --batch-size B measures it"])
    points = recorded_points.points
    return Measured(
        points,
        title=f"{where}: {' and '.join(map(str, definition.quality))}",
        notes=[f"problem: {each}" for each in rcp.find_problems(recorded_points, definition)],
        is_fine=all(len(point.samples) == len(point.runs) for point in points),
    )


def list_columns(request: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns, with the least and the greatest plausible mean of a result (T21)."""
    definition = request.definition
    points = rcp.load(definition.name, definition.scale)
    expected = {
        entry.batch_size: entry
        for entry in (convergence.list_expected(points, definition) if points else ())
    }

    runs = definition.runs.required

    def read(find: Callable[[Expected], float]) -> Callable[[Point], float | None]:
        return lambda point: (
            find(expected[point.batch_size]) if point.batch_size in expected else None
        )

    return (
        Column("batch size", lambda point: point.batch_size),
        Column("reached", lambda point: f"{len(point.samples)} of {len(point.runs)}"),
        Column("samples to target", lambda point: _format_range(point.samples, ",d")),
        Column("crossed", lambda point: _format_range(point.crossings, ",.0f") or "not kept"),
        Column("mean", read(lambda one: one.mean), "{:,.0f}".format),
        Column("least plausible", read(lambda one: one.find_limits(runs)[0]), "{:,.0f}".format),
        Column("greatest", read(lambda one: one.find_limits(runs)[1]), "{:,.0f}".format),
        Column("epochs", _describe_epochs),
        Column("set", lambda point: _list_changes(point, definition)),
    )


def _describe_epochs(point: Point) -> str:
    reached = [run.epochs for run in point.runs if run.samples_to_target is not None]
    return _format_range(reached, ".2f")


def _load_points(definition: Definition) -> ReferencePoints:
    """Return the points of this very definition; those of an earlier one are dropped."""
    points = rcp.load(definition.name, definition.scale)
    return (
        points if points and points.belongs_to(definition) else ReferencePoints(definition.digest)
    )


def _refuse_other_hyperparameters(point: Point, training: Training, definition: Definition) -> None:
    """Raise UserError where a point was measured with other values than this run would have."""
    wanted = training.config.hyperparameters
    differing = [
        f"{name} {point.hyperparameters[name]}, not {value}"
        for name, value in wanted.items()
        if point.hyperparameters[name] != value
    ]
    if differing:
        raise UserError(
            f"batch size {point.batch_size} was measured with other hyperparameters "
            f"({'; '.join(differing)}); give the same ones with --set, or delete the point from "
            f"{evidence.locate_file(definition.name, rcp.FILE)} to measure it again"
        )


def _find_in_evidence(definition: Definition, training: Training) -> Curve | None:
    """Return the same run where ``cepheid measure targets`` has made it, with all defaults."""
    defaults = {name: rule.default for name, rule in definition.hyperparameters.items()}
    found = evidence.load(definition)
    if found is None or dict(training.config.hyperparameters) != defaults:
        return None
    seed = training.config.seed
    return next((curve for curve in found.correct if curve.seed == seed), None)


def keep(definition: Definition, training: Training, curve: Curve) -> None:
    """Record a run, in place of one of the same batch size and seed."""
    hyperparameters = dict(training.config.hyperparameters)
    samples, quality = curve.evaluations[-1] if curve.evaluations else (0, {})
    run = Run(
        seed=curve.seed,
        samples_to_target=curve.count_samples_to_target(definition),
        epochs=round(samples / definition.train_samples, 4),
        seconds=round(curve.seconds, 1),
        quality=dict(quality),
        crossing=curve.find_crossing(definition),
        code=curve.code,
    )
    # Read again: another process may measure another batch size at the same time.
    with lock_record(definition.name, rcp.FILE):
        points = _load_points(definition).add_run(hyperparameters, curve.measured, run)
        rcp.save(definition.name, definition.scale, points)


def _format_range(values: Sequence[float], form: str) -> str:
    """Return the smallest and the largest value, or the only one."""
    ends = sorted({min(values), max(values)}) if values else []
    return " to ".join(format(value, form) for value in ends)


def _list_changes(point: Point, definition: Definition) -> str:
    """Return the hyperparameters other than the defaults, without the batch size."""
    defaults = {name: rule.default for name, rule in definition.hyperparameters.items()}
    return " ".join(
        f"{name}={value}"
        for name, value in point.hyperparameters.items()
        if name != BATCH_SIZE and defaults.get(name) != value
    )


STUDY = Study("rcp", list_trainings, measure, list_columns, **read_command("rcp"))
