"""Cost and gradient variance of the three ways to draw weights, measured on this machine.

    python -m benchmarks.galaxy_bnn.compare [--data DIR] [--train-samples N] [--draws N]

A network is trained the plain way for a while, to be in no special state. Then, for the same batch
and the same weights, the gradient of the likelihood is taken with many draws of the noise, in
float32: printed is the sum over all means (or all untransformed scales) of the variance of the
gradient, beside that of the plain way. Steps are timed as runs make them, in turns; the precision
is the machine's best, compiled.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor

from benchmarks.galaxy_bnn.estimators import PER_SAMPLE, PLAIN
from benchmarks.galaxy_bnn.model import gaussian_weights
from benchmarks.galaxy_bnn.task import GalaxyBnn
from benchmarks.galaxy_shape.task import GalaxyShape
from reference import data
from reference.measure import speed
from reference.run.config import configure
from reference.torch.distributed import TorchRanks, start_ranks
from rules import definition
from rules.definition import Block

STEPS_PER_TURN, ROUNDS = 5, 7


def built(name: str, estimator: str, root: Path, ranks: TorchRanks, *settings: str) -> GalaxyShape:
    """A task with its data open; ``estimator`` is empty for galaxy_shape."""
    chosen = definition.load(name, "mini")
    overrides = [f"weight_sampling={estimator}"] if estimator else []
    config = configure(
        chosen, division="open", overrides=[*overrides, *settings], data_root=root, seed=1
    )
    task = (GalaxyBnn if estimator else GalaxyShape)(config, ranks)
    task.build()
    task.open_data()
    return task


def gradient_variances(task: GalaxyBnn, draws: int) -> tuple[float, float]:
    """Summed over all means, and over all untransformed scales."""
    stamps, labels = task.next_batch()
    of_means, of_scales = Moments(), Moments()
    weights = list(gaussian_weights(task.model))
    task.model.train()
    for draw in range(draws):
        task.weight_noise.draw(0, "compare", draw)
        task.sample_noise.draw(draw, 0)
        task.optimizer.zero_grad()
        GalaxyShape._mean_loss(task, stamps, labels).backward()
        of_means.add([mean.grad for mean, _ in weights])
        of_scales.add([posterior.untransformed_scale.grad for _, posterior in weights])
    return of_means.variance(), of_scales.variance()


class Moments:
    """Sums of vectors and of their squares, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self.total: Tensor | float = 0.0
        self.squares: Tensor | float = 0.0

    def add(self, parts: list[Any]) -> None:
        """One vector, in parts."""
        vector = torch.cat([part.flatten() for part in parts]).double()
        self.count += 1
        self.total, self.squares = self.total + vector, self.squares + vector.square()

    def variance(self) -> float:
        """Summed over all entries."""
        mean = self.total / self.count
        spread = torch.as_tensor(self.squares / self.count - mean * mean)
        return float(spread.sum()) * self.count / (self.count - 1)


def step_seconds(root: Path, ranks: TorchRanks) -> Mapping[str, float]:
    """The best turn of a training step of each estimator; ``""`` is galaxy_shape."""
    tasks: dict[str, Any] = {
        "": built("galaxy_shape", "", root, ranks, "compile=on"),
        **{
            estimator: built("galaxy_bnn", estimator, root, ranks, "compile=on")
            for estimator in (PLAIN, *PER_SAMPLE)
        },
    }
    best = dict.fromkeys(tasks, float("inf"))
    for task in tasks.values():
        task.warm_up()
    for _ in range(ROUNDS):
        for estimator, task in tasks.items():
            seconds = speed.step_seconds(task, STEPS_PER_TURN)
            best[estimator] = min(best[estimator], seconds)
    return best


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--train-samples", type=int, default=6000)
    parser.add_argument("--draws", type=int, default=50)
    arguments = parser.parse_args()
    chosen = definition.load("galaxy_bnn", "mini")
    data.prepare(chosen.data, arguments.data)
    with start_ranks() as ranks:
        seconds = step_seconds(arguments.data, ranks)
        eager = ("precision=fp32", "compile=off")
        trained = built("galaxy_bnn", PLAIN, arguments.data, ranks, "compile=on")
        trained.warm_up()
        trained.train(Block(1, 0, arguments.train_samples), lambda samples: None)
        rows = []
        plain: tuple[float, float] | None = None
        for estimator in (PLAIN, *PER_SAMPLE):
            task = built("galaxy_bnn", estimator, arguments.data, ranks, *eager)
            assert isinstance(task, GalaxyBnn)
            with torch.no_grad():
                pairs = zip(task.model.parameters(), trained.model.parameters(), strict=True)
                for mine, theirs in pairs:
                    mine.copy_(theirs)
            found = gradient_variances(task, arguments.draws)
            plain = plain or found
            rows.append(
                {
                    "estimator": estimator,
                    "ms per step": seconds[estimator] * 1000,
                    "against galaxy_shape": seconds[estimator] / seconds[""],
                    "variance of ∂/∂mean": found[0] / plain[0],
                    "variance of ∂/∂scale": found[1] / plain[1],
                }
            )
    print(tabulate(rows, headers="keys", floatfmt=".3g"))


if __name__ == "__main__":
    main()
