"""kfac: damping that changes over a run."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.benchmarks.kfac.hyperparameters import make_damping_schedule
from cepheid.reference.run.config import configure
from cepheid.rules.errors import UserError
from tests.benchmarks.test_kfac import MINI, build_task


def test_damping_may_follow_a_schedule(data_root: Path) -> None:
    with pytest.raises(UserError, match="the closed division has constant only"):
        configure(MINI, overrides=["kfac_damping_schedule=falling"])
    with pytest.raises(UserError, match="without K-FAC nothing is damped; fix: leave it out"):
        build_task(data_root, "kfac_damping_schedule=rising", "opt_preconditioner=none")
    half, whole = 14_000, 28_000  # samples: half and all of the 7 epochs
    for chosen, values in (
        ("constant", (0.01, 0.01, 0.01)),
        ("falling", (0.01, 0.1**2.5, 0.001)),
        ("rising", (0.001, 0.1**2.5, 0.01)),
    ):
        config = configure(MINI, division="open", overrides=[f"kfac_damping_schedule={chosen}"])
        schedule = make_damping_schedule(config)
        found = [schedule.find_damping(samples) for samples in (0, half, whole, 2 * whole)]
        assert found == pytest.approx([*values, values[-1]])
    task = build_task(data_root, "kfac_damping_schedule=falling")
    task.step()
    assert task.preconditioner.kfac.damping == task.shape.damping.find_damping(task.samples) < 0.01
