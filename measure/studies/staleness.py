"""Quality against staleness: the reference trained with gradients that are some updates old.

``benchmarks/<name>/staleness.json`` holds the quality curves, in the form of ``evidence.json``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.trainings import Training
from cepheid.measure.studies import targets
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.session.observer import Observer
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve

FILE = "staleness.json"


@dataclass(frozen=True)
class Request:
    """The delays to compare, in updates, with these seeds each and these settings of ``--set``."""

    delays: Sequence[int]
    seeds: Sequence[int]
    data_root: Path
    overrides: Sequence[str] = ()


@dataclass(frozen=True)
class Arm:
    """The runs with one delay, by seed."""

    delay: int
    curves: tuple[Curve, ...]

    def list_samples_to_target(self, definition: Definition) -> list[int]:
        """Return the samples to target of the runs that reached it."""
        counts = (curve.count_samples_to_target(definition) for curve in self.curves)
        return [count for count in counts if count is not None]

    def list_quality(self, metric: str, samples: int) -> list[float]:
        """Return a metric of each run at its evaluation after ``samples``, if it has one."""
        return [
            quality[metric]
            for curve in self.curves
            for count, quality in curve.evaluations
            if count == samples
        ]


def measure_missing(definition: Definition, request: Request, observer: Observer) -> list[Arm]:
    """Make the runs that are not recorded, and return what ``request`` asks for, by delay.

    Each run is recorded as soon as it ends. All delays of a seed follow each other.
    """
    from cepheid.reference.torch.stale import delay_gradients

    create = import_task(definition, "torch").create
    configs = [
        configure(
            definition,
            division="open",
            overrides=request.overrides,
            data_root=request.data_root,
            seed=seed,
        )
        for seed in request.seeds
    ]
    wanted = [
        Training(
            f"delay {delay}, seed {config.seed}",
            name_variant(delay, config),
            delay_gradients(create, delay),
            config,
        )
        for config in configs
        for delay in request.delays
    ]
    recorded = targets.measure_missing(definition, wanted, request.data_root, observer, FILE)
    found = {(curve.variant, curve.seed): curve for curve in recorded.curves}
    return [
        Arm(
            delay,
            tuple(found[name_variant(delay, config), config.seed] for config in configs),
        )
        for delay in request.delays
    ]


def name_variant(delay: int, config: RunConfig) -> str:
    """Return the name of a variant: its delay and the hyperparameters that are not the default.

    Execution settings, which leave the mathematics alone, are not part of it.
    """
    rules = config.definition.hyperparameters
    changed = (
        f"{key}={value}"
        for key, value in config.hyperparameters.items()
        if value != rules[key].default
    )
    return ", ".join([f"delay {delay}", *changed])


def find_common_evaluation(definition: Definition, arms: Sequence[Arm]) -> int | None:
    """Return the samples of the last evaluation at which all runs can be compared.

    It is where the first run that reached the targets ended, else the end of the budget. A run that
    diverged earlier has none there. Returns None if all of them diverged at once.
    """
    reached = [samples for arm in arms for samples in arm.list_samples_to_target(definition)]
    if reached:
        return min(reached)
    evaluations = (curve.evaluations for arm in arms for curve in arm.curves)
    return max((points[-1][0] for points in evaluations if points), default=None)
