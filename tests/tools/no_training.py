"""Commands that train again and again, without training: runs are replaced by their curves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cepheid.measure.engine import trainings
from cepheid.measure.engine.trainings import Training
from cepheid.rules.evidence import Curve
from tests import tiny

GOOD, POOR = {"e_rmse": 0.0, "nll": -99.0}, {"e_rmse": 1.0, "nll": 99.0}
Points = Sequence[tuple[int, Mapping[str, float]]]


class FakeTraining:
    """Takes the place of training: keeps the runs that it was to make, and yields their points.

    ``describe`` returns what each run was measured on.
    """

    def __init__(self, make_points: Callable[[Training], Points]) -> None:
        self.runs: list[Training] = []
        self.make_points = make_points
        self.describe: Callable[[Training], dict[str, Any]] = lambda run: {"device": "cpu"}

    def __call__(
        self, definition: object, wanted: list[Training], data_root: Path, observer: object
    ) -> Iterator[tuple[Training, Curve]]:
        for run in wanted:
            self.runs.append(run)
            points = tuple(self.make_points(run))
            made = Curve(run.variant, run.config.seed, 1.23, points, measured=self.describe(run))
            yield run, made

    @property
    def names(self) -> list[tuple[str, int]]:
        return [(run.variant, run.config.seed) for run in self.runs]

    @property
    def sizes(self) -> list[tuple[int, int]]:
        return [(run.config.global_batch_size, run.config.seed) for run in self.runs]


def replace_training(fake: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``fake`` take the place of training, with a folder in which nothing is measured."""
    tiny.install(folder, monkeypatch, "galaxy_shape")
    monkeypatch.setattr(trainings, "train_all", fake)
