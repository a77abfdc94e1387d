"""Record how many samples the reference needs to its targets, by batch size (rule T21)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import trainings
from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.reference.run.config import configure
from cepheid.reference.session.observer import Observer
from cepheid.rules import evidence, rcp, recorded
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import Curve
from cepheid.rules.rcp import BATCH_SIZE, Point, ReferencePoints, Run


@dataclass(frozen=True)
class Request:
    """The batch sizes to measure, with how many seeds, and with which settings of ``--set``."""

    batch_sizes: Sequence[int]
    runs: int
    data_root: Path
    overrides: Sequence[str] = field(default=())


def measure_missing(definition: Definition, request: Request, observer: Observer) -> None:
    """Make the runs that are not recorded for this definition; each is recorded as it ends.

    A run with all defaults that ``evidence.json`` has is taken from there. Raises UserError where a
    batch size was measured with other hyperparameters.
    """
    points = _load_points(definition)
    missing = []
    for size in dict.fromkeys(request.batch_sizes):
        wanted = [
            _prepare_training(definition, size, seed, request)
            for seed in range(1, request.runs + 1)
        ]
        point = points.at(size)
        if point:
            _refuse_other_hyperparameters(point, wanted[0], definition)
        have = {run.seed for run in point.runs} if point else set()
        for training in wanted:
            if training.config.seed in have:
                continue
            if found := _find_in_evidence(definition, training, request):
                _keep(definition, training, *found)
            else:
                missing.append(training)
    finished = trainings.train_all(definition, missing, request.data_root, observer)
    for training, curve, measured in finished:
        _keep(definition, training, curve, measured)


def _load_points(definition: Definition) -> ReferencePoints:
    """Return the points of this very definition; those of an earlier one are dropped."""
    points = rcp.load(definition.name, definition.scale)
    return (
        points if points and points.belongs_to(definition) else ReferencePoints(definition.digest)
    )


def _prepare_training(definition: Definition, size: int, seed: int, request: Request) -> Training:
    config = configure(
        definition,
        overrides=[*request.overrides, f"{BATCH_SIZE}={size}"],
        data_root=request.data_root,
        seed=seed,
    )
    create = import_task(definition, "torch").create
    return Training(f"batch size {size}, seed {seed}", CORRECT, create, config)


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
            f"{recorded.path(definition.name, rcp.FILE)} to measure it again"
        )


def _find_in_evidence(
    definition: Definition, training: Training, request: Request
) -> tuple[Curve, Mapping[str, Any]] | None:
    """Return the same run where ``cepheid measure targets`` has made it, with all defaults."""
    defaults = {name: rule.default for name, rule in definition.hyperparameters.items()}
    if request.overrides or dict(training.config.hyperparameters) != defaults:
        return None
    found = evidence.load(definition)
    if found is None:
        return None
    seed = training.config.seed
    curve = next((curve for curve in found.correct if curve.seed == seed), None)
    return (curve, found.measured) if curve else None


def _keep(
    definition: Definition, training: Training, curve: Curve, measured: Mapping[str, Any]
) -> None:
    hyperparameters = dict(training.config.hyperparameters)
    samples, quality = curve.evaluations[-1] if curve.evaluations else (0, {})
    run = Run(
        seed=curve.seed,
        samples_to_target=curve.count_samples_to_target(definition),
        epochs=round(samples / definition.train_samples, 4),
        seconds=round(curve.seconds, 1),
        quality=dict(quality),
    )
    # Read again: another process may measure another batch size at the same time.
    points = _load_points(definition).add_run(hyperparameters, _drop_reasons(measured), run)
    rcp.save(definition.name, definition.scale, points)


def _drop_reasons(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a run without its times, which are others in every run."""
    execution = {
        key: value for key, value in measured.get("execution", {}).items() if key != "because"
    }
    return {**measured, "execution": execution} if execution else dict(measured)
