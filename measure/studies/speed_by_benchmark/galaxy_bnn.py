"""The measurements that `cepheid measure speed galaxy_bnn` adds: drawing, and the estimators.

``estimators`` compares the three ways to draw weights: the time of a step, compiled, in turns; and
the variance of the gradient of the likelihood over many draws, in float32, for one batch and the
weights of a network that was trained for a while.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_bnn.estimators import PER_SAMPLE, PLAIN
from cepheid.benchmarks.galaxy_bnn.model import iterate_gaussian_weights
from cepheid.benchmarks.galaxy_bnn.task import GalaxyBnn
from cepheid.benchmarks.galaxy_shape.task import WORKLOAD as SHAPE_WORKLOAD
from cepheid.measure.engine.subject import Measure, Measurement, Row, Subject, format_timing
from cepheid.measure.engine.turns import time_steps
from cepheid.measure.studies.speed_by_benchmark.galaxy_shape import MEASUREMENTS as OF_GALAXIES
from cepheid.reference.run.config import configure
from cepheid.reference.session.frameworks import find_create
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block

STEPS = 5  # of each turn
TRAIN_SAMPLES, DRAWS = 6000, 50
ESTIMATORS = (PLAIN, *PER_SAMPLE)
SHAPE = "galaxy_shape"


def compare_estimators(subject: Subject) -> Measurement:
    """Compare a step and its gradient variance, by how weights are drawn."""
    tasks: dict[str, Any] = {SHAPE: _make_task(subject, "", "compile=on")}
    for estimator in ESTIMATORS:
        tasks[estimator] = _make_task(subject, estimator, "compile=on")
    for task in tasks.values():
        task.warm_up()
    measures = {name: partial(time_steps, task, STEPS) for name, task in tasks.items()}
    timings = {timing.label: timing for timing in subject.time("steps", measures)}
    trained = tasks[PLAIN]
    trained.samples = 0
    trained.train(Block(1, 0, TRAIN_SAMPLES), lambda samples: None)
    variances = {name: _measure_variances(subject, name, trained) for name in ESTIMATORS}
    rows, facts = [], {}
    for name in ESTIMATORS:
        ratio = timings[name].median_seconds / timings[SHAPE].median_seconds
        means, scales = (
            of_this / of_plain
            for of_this, of_plain in zip(variances[name], variances[PLAIN], strict=True)
        )
        rows.append(
            Row(
                name,
                f"{ratio:.2f} times a step of {SHAPE}; variance of the gradient relative to "
                f"{PLAIN}: means {means:.3g}, scales {scales:.3g}",
                format_timing(timings[name]),
                f"{SHAPE}: {format_timing(timings[SHAPE])}",
            )
        )
        facts[name] = {
            "seconds": timings[name].seconds,
            "ratio_of_medians": ratio,
            "relative_variance_of_means": means,
            "relative_variance_of_scales": scales,
        }
    return Measurement(rows, facts)


def _make_task(subject: Subject, estimator: str, *settings: str) -> Any:
    """Return a task with its data open; an empty ``estimator`` means galaxy_shape."""
    own = subject.config.definition
    chosen = own if estimator else definitions.load(SHAPE, own.scale)
    overrides = [f"weight_sampling={estimator}"] if estimator else []
    config = configure(
        chosen,
        division="open",
        overrides=[*overrides, *settings],
        data_root=subject.config.data_root,
        seed=1,
    )
    task: Any = find_create(GalaxyBnn if estimator else SHAPE_WORKLOAD)(config, subject.ranks)
    task.build()
    task.open_data()
    return task


def _measure_variances(subject: Subject, estimator: str, trained: Any) -> tuple[float, float]:
    """Return the gradient variances of an estimator at the weights of another task."""
    task = _make_task(subject, estimator, "precision=fp32", "compile=off")
    assert isinstance(task, GalaxyBnn)
    task.model.load_state_dict(trained.model.state_dict())
    return measure_gradient_variances(task, DRAWS)


def measure_gradient_variances(task: GalaxyBnn, draws: int) -> tuple[float, float]:
    """Return the variance of the gradient for one batch, over many draws of the weights.

    It is summed over all means, and over all untransformed scales.
    """
    stamps, labels = task.next_batch()
    of_means, of_scales = Moments(), Moments()
    weights = list(iterate_gaussian_weights(task.model))
    task.model.train()
    for draw in range(draws):
        task.weight_noise.draw(0, "compare", draw)
        task.sample_noise.draw(draw, 0, len(stamps))
        task.optimizer.zero_grad()
        task.compute_likelihood_loss(stamps, labels).backward()
        of_means.add([mean.grad for mean, _ in weights])
        of_scales.add([posterior.untransformed_scale.grad for _, posterior in weights])
    return of_means.variance(), of_scales.variance()


class Moments:
    """The sums of vectors and of their squares, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def add(self, parts: Sequence[Tensor | None]) -> None:
        """Add one vector, given as tensors of any shapes."""
        vector = torch.cat([part.flatten() for part in parts if part is not None]).double()
        self.count += 1
        self.total, self.squares = self.total + vector, self.squares + vector.square()

    def variance(self) -> float:
        """Return the variance, summed over all entries of the vector."""
        mean = self.total / self.count
        spread = torch.as_tensor(self.squares / self.count - mean * mean)
        return float(spread.sum()) * self.count / (self.count - 1)


MEASUREMENTS: Mapping[str, Measure] = {**OF_GALAXIES, "estimators": compare_estimators}
ON_REQUEST = ("estimators",)
