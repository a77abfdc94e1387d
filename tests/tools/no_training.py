"""Commands that measure runs of ``galaxy_shape``, without its training."""

from pathlib import Path
from typing import Any

import pytest

from cepheid.measure.engine import trainings
from tests import tiny

GOOD, POOR = {"e_rmse": 0.0, "nll": -99.0}, {"e_rmse": 1.0, "nll": 99.0}


def replace_training(fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``fake`` take the place of training, in a folder with nothing measured."""
    tiny.install(tmp_path / "benchmarks", monkeypatch, "galaxy_shape")
    monkeypatch.setattr(trainings, "train_all", fake)
