"""Record whether a benchmark's targets separate correct runs from broken variants."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.measure.engine import trainings
from cepheid.measure.engine.trainings import CORRECT, TaskFactory, Training
from cepheid.reference.run.config import configure
from cepheid.reference.session.observer import Observer
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve, Evidence
from cepheid.rules.recorded import path as find_path


def list_trainings(
    definition: Definition,
    create: TaskFactory,
    variants: Mapping[str, TaskFactory],
    seeds: int,
    broken_seeds: int,
    data_root: Path,
) -> list[Training]:
    """Return the runs of the correct reference and of its broken ``variants``, seeds 1, 2, …."""
    runs = [(CORRECT, create, seed) for seed in range(1, seeds + 1)]
    runs += [
        (variant, create_broken, seed)
        for variant, create_broken in variants.items()
        for seed in range(1, broken_seeds + 1)
    ]
    return [
        Training(
            f"{variant}, seed {seed}",
            variant,
            factory,
            configure(definition, seed=seed, data_root=data_root),
        )
        for variant, factory, seed in runs
    ]


def measure_missing(
    definition: Definition,
    wanted: Sequence[Training],
    data_root: Path,
    observer: Observer,
    file: str = evidence.FILE,
) -> Evidence:
    """Make the runs that ``file`` does not have for this definition, and return all of them.

    Each run is recorded as soon as it ends, beside those that another process has recorded
    meanwhile.
    """
    recorded = _load(definition, file)
    have = {(curve.variant, curve.seed) for curve in recorded.curves}
    missing = [each for each in wanted if (each.variant, each.config.seed) not in have]
    for _, curve, measured in trainings.train_all(definition, missing, data_root, observer):
        recorded = _record(definition, curve, measured, file)
    return recorded


def _record(
    definition: Definition, curve: Curve, measured: Mapping[str, Any], file: str
) -> Evidence:
    """Add a run to the file, in place of one of the same variant and seed; return all."""
    from filelock import FileLock  # here: who reads what is recorded needs no extra

    path = find_path(definition.name, file)
    with FileLock(path.with_name(f".{path.name}.lock")):
        others = [
            each
            for each in _load(definition, file).curves
            if (each.variant, each.seed) != (curve.variant, curve.seed)
        ]
        recorded = Evidence(definition.digest, measured, (*others, curve))
        evidence.save(definition.name, definition.scale, recorded, file)
    return recorded


def _load(definition: Definition, file: str) -> Evidence:
    """Return the runs that are recorded for this very definition."""
    return evidence.load(definition, file) or Evidence(definition.digest, {}, ())
