"""Record whether a benchmark's targets separate correct runs from broken variants."""

from collections.abc import Mapping
from pathlib import Path

from cepheid.measure.engine.trainings import CORRECT, TaskFactory, Training
from cepheid.reference.run.config import configure
from cepheid.rules.definition import Definition


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
