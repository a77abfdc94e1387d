"""What `cepheid measure speed` adds for galaxies: drawing, and the estimators of galaxy_bnn.

``estimators`` compares the three ways to draw weights: the time of a step, compiled, in turns; and
the variance of the gradient of the likelihood over many draws, in float32, for one batch and the
weights of a network that was trained for a while.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_bnn.estimators import PER_SAMPLE, PLAIN
from cepheid.benchmarks.galaxy_bnn.model import iterate_gaussian_weights
from cepheid.benchmarks.galaxy_bnn.task import compute_likelihood_loss, get_noises
from cepheid.measure.engine.turns import (
    Measure,
    Measurement,
    Row,
    Sides,
    Subject,
    configure_open,
    format_timing,
    make_task,
    time_each,
)
from cepheid.reference.data import galaxies
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block

GALAXIES = 20  # of each turn
STEPS = 5  # of each turn
TRAIN_SAMPLES, DRAWS = 6000, 50
ESTIMATORS = (PLAIN, *PER_SAMPLE)
SHAPE = "galaxy_shape"


def compare_drawing(subject: Subject) -> Measurement:
    """Compare noise-free images of galaxies with one GalSim drawImage per band."""
    parameters = galaxies.parameters_of(subject.config.definition.data)
    # The same galaxies in each turn: the round that does not count fills the tables.
    some = [galaxies.draw_galaxy(parameters, index) for index in range(GALAXIES)]
    slow, fast = (
        partial(time_each, partial(draw, parameters), some)
        for draw in (galaxies.draw_with_galsim, galaxies.compute_electrons)
    )
    what = f"galaxy of {len(parameters.bands)} bands, without noise"
    return subject.measure(Sides(what, "drawImage per band", slow, fast, timed=True))


def compare_estimators(subject: Subject) -> Measurement:
    """Compare a step and its gradient variance, by how weights are drawn."""
    names = (SHAPE, *ESTIMATORS)
    tasks = {name: _make_task(subject, name, "compile=on", is_warm=True) for name in names}
    timings = {timing.label: timing for timing in subject.time_tasks("steps", tasks, STEPS)}
    trained = tasks[PLAIN]
    trained.samples = 0
    trained.train(Block(1, 0, TRAIN_SAMPLES), lambda samples: None)
    variances = {}
    for name in ESTIMATORS:
        task = _make_task(subject, name, "precision=fp32", "compile=off", is_warm=False)
        task.model.load_state_dict(trained.model.state_dict())
        variances[name] = measure_gradient_variances(task, DRAWS)
    rows, facts = [], {}
    of_shape = timings[SHAPE]
    for name in ESTIMATORS:
        ratio = timings[name].median_seconds / of_shape.median_seconds
        means, scales = (
            variance / of_plain
            for variance, of_plain in zip(variances[name], variances[PLAIN], strict=True)
        )
        text = (
            f"{ratio:.2f} times a step of {SHAPE}; variance of the gradient relative to "
            f"{PLAIN}: means {means:.3g}, scales {scales:.3g}"
        )
        against = f"{SHAPE}: {format_timing(of_shape)}"
        rows.append(Row(name, text, format_timing(timings[name]), against))
        facts[name] = {
            "seconds": timings[name].seconds,
            "ratio_of_medians": ratio,
            "relative_variance_of_means": means,
            "relative_variance_of_scales": scales,
        }
    return Measurement(rows, facts)


def _make_task(subject: Subject, name: str, *settings: str, is_warm: bool) -> Any:
    """Return a task with its data open: that of galaxy_shape, or one with an estimator."""
    own, root = subject.config.definition, subject.config.data_root
    chosen = definitions.load(SHAPE, own.scale) if name == SHAPE else own
    estimator = [] if name == SHAPE else [f"weight_sampling={name}"]
    config = configure_open(chosen, overrides=[*estimator, *settings], data_root=root)
    return make_task(config, subject.ranks, is_warm=is_warm)


def measure_gradient_variances(task: Any, draws: int) -> tuple[float, float]:
    """Return the variance of the gradient for one batch, over many draws of the weights.

    It is summed over all means, and over all untransformed scales.
    """
    batch = task.data.take(task.samples, task.batch_per_rank)[0]
    stamps, labels = task.to_device(batch.inputs), task.to_device(batch.targets)
    noises = get_noises(task.model)
    of_means, of_scales = Moments(), Moments()
    weights = list(iterate_gaussian_weights(task.model))
    task.model.train()
    for draw in range(draws):
        noises.weights.draw(0, "compare", draw)
        noises.samples.draw(draw, 0, len(stamps))
        task.optimizer.zero_grad()
        compute_likelihood_loss(task.shape, task.evaluated, stamps, labels).backward()
        of_means.add([mean.grad for mean, _ in weights])
        of_scales.add([posterior.untransformed_scale.grad for _, posterior in weights])
    return of_means.variance(), of_scales.variance()


@dataclass
class Moments:
    """The sums of vectors and of their squares, in float64."""

    count: int = 0
    total: Tensor | float = 0.0
    squares: Tensor | float = 0.0

    def add(self, parts: list[Tensor | None]) -> None:
        """Add one vector, given as tensors of any shapes."""
        vector = torch.cat([part.flatten() for part in parts if part is not None]).double()
        self.count += 1
        self.total, self.squares = self.total + vector, self.squares + vector.square()

    def variance(self) -> float:
        """Return the variance, summed over all entries of the vector."""
        mean = self.total / self.count
        spread = torch.as_tensor(self.squares / self.count - mean * mean)
        return float(spread.sum()) * self.count / (self.count - 1)


DRAWING: Mapping[str, Measure] = {"drawing": compare_drawing}
MEASUREMENTS: Mapping[str, Mapping[str, Measure]] = {
    "galaxy_shape": DRAWING,
    "galaxy_vae": DRAWING,
    "galaxy_bnn": {**DRAWING, "estimators": compare_estimators},
}
ON_REQUEST = ("estimators",)
