"""One interface of shallow baselines: each yields the metrics of its configurations.

A baseline knows the task from its data alone. It has 60 seconds of processor time on one core, with
all reading and fitting, and 20 configurations. The best configuration counts, chosen on the very
evaluation set: a target is to be out of reach even then.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cepheid.reference.data import generators
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve

SECONDS_MAX = 60.0  # of processor time
CONFIGURATIONS_MAX = 20
Metrics = Mapping[str, float]


@dataclass(frozen=True)
class Trial:
    """What a baseline gets: the definition, the prepared data, and a seed."""

    definition: Definition
    data_root: Path
    seed: int

    @cached_property
    def data(self) -> Any:
        """The dataset, as its generator opens it."""
        folder = generators.folder(self.definition.data, self.data_root)
        return generators.find_source(self.definition.data).load(folder)

    @property
    def model(self) -> Mapping[str, Any]:
        """The facts of the model, of which sizes of images are one."""
        return self.definition.model

    @property
    def train(self) -> slice:
        """The rows to learn from."""
        return slice(0, self.definition.train_samples)

    @property
    def evaluation(self) -> slice:
        """The rows to be judged by."""
        first = self.definition.train_samples
        return slice(first, first + self.definition.evaluation_samples)


@dataclass(frozen=True)
class Baseline:
    """A method by name."""

    name: str
    run: Callable[[Trial], Iterator[Metrics]]


def try_out(
    baseline: Baseline, trial: Trial, clock: Callable[[], float] = time.process_time
) -> Curve:
    """Run a baseline within its bounds; return its best configuration as a curve of one point.

    A configuration that ends after the time is over does not count. The curve is empty where none
    ended in time.
    """
    start, best, seconds = clock(), None, 0.0
    for metrics in itertools.islice(baseline.run(trial), CONFIGURATIONS_MAX):
        spent = clock() - start
        if spent > SECONDS_MAX:
            break
        seconds = spent
        if best is None or find_shortfall(metrics, trial.definition) < find_shortfall(
            best, trial.definition
        ):
            best = metrics
    points = () if best is None else ((trial.definition.train_samples, dict(best)),)
    return Curve(baseline.name, trial.seed, seconds, points)


def find_shortfall(metrics: Metrics, definition: Definition) -> float:
    """Return by what share of its target the worst metric misses it; less than 0 beyond it."""
    return max(
        (target.target - metrics.get(target.metric, math.nan))
        * (1 if target.better == "higher" else -1)
        / (abs(target.target) or 1.0)
        for target in definition.quality
    )
