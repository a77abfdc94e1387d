"""`cepheid measure staleness`: runs are replaced by the curves that they would leave."""

import json
from pathlib import Path

import pytest

from cepheid.measure.engine.trainings import Training
from cepheid.measure.studies import staleness
from cepheid.reference.torch.parallel.stale import StaleGradients
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition, evidence
from cepheid.tools.measure.__main__ import main as measure
from tests.tools.no_training import FakeTraining, Points, replace_training

Printed = pytest.CaptureFixture[str]
POOR, GOOD = {"e_rmse": 0.2, "nll": -1.0}, {"e_rmse": 0.09, "nll": -2.6}
SAMPLES_OF = {"0": 6000, "4": 12_000}


def make_points(run: Training) -> Points:
    """Return the curve of a run; delay 16 diverges."""
    delay = run.variant.split(",")[0].removeprefix("delay ")
    points = [(samples, POOR) for samples in (3000, 6000)]
    if delay not in SAMPLES_OF:
        return points
    return [*points[: -1 if delay == "0" else None], (SAMPLES_OF[delay], GOOD)]


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    """No training, and a folder of benchmarks with nothing measured."""
    fake = FakeTraining(make_points)
    replace_training(fake, tmp_path, monkeypatch)
    return fake


def cepheid_staleness(*arguments: str) -> int:
    return measure(["staleness", "galaxy_shape", *arguments])


def test_delays_are_compared(training: FakeTraining, tmp_path: Path, capsys: Printed) -> None:
    figure = tmp_path / "staleness.png"
    asked = ("--delays", "4", "0", "--seeds", "1", "2", "--figure", str(figure))
    assert cepheid_staleness(*asked) == 0
    assert training.names == [(f"delay {delay}", seed) for seed in (1, 2) for delay in (0, 4)]
    assert {run.config.division for run in training.runs} == {"open"}
    printed = capsys.readouterr().out
    first, second, *_ = (row for row in printed.splitlines() if row.startswith("delay "))
    assert first.split()[1:7] == ["0", "2", "0", "1", "1", "1.0"]
    assert second.split()[1:11] == [*"42022", "2.0", "2.00", "(2.00", "to", "2.00)"]
    # Compared where the first run ended, where the other had not learnt yet.
    assert "e_rmse after 1 epochs" in printed
    assert first.split()[7:10] == ["0.09", "±", "0"]
    assert second.split()[11:14] == ["0.2", "±", "0"]
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_run_trains_with_gradients_of_its_delay(training: FakeTraining, tmp_path: Path) -> None:
    import torch

    cepheid_staleness("--delays", "4", "--seeds", "1", "--data", str(tmp_path))
    (run,) = training.runs
    task = run.create(TorchRanks(0, 1, torch.device("cpu")))
    assert isinstance(task.loss_and_gradients, StaleGradients)
    assert task.loss_and_gradients.versions.maxlen == 5


def test_a_recorded_run_is_not_made_again(training: FakeTraining, tmp_path: Path) -> None:
    cepheid_staleness("--delays", "0", "--seeds", "1")
    cepheid_staleness("--delays", "0", "4", "--seeds", "1", "2")
    assert len(training.runs) == 4
    assert cepheid_staleness("--delays", "0", "4", "--seeds", "1", "2") == 0
    # How the arithmetic is done makes no other variant; another hyperparameter does.
    cepheid_staleness("--delays", "0", "--seeds", "1", "--set", "precision=fp32")
    assert len(training.runs) == 4
    cepheid_staleness("--delays", "0", "--seeds", "1", "--set", "opt_base_learning_rate=5e-4")
    assert training.runs[4].variant == "delay 0, opt_base_learning_rate=0.0005"
    recorded = json.loads((tmp_path / "galaxy_shape" / staleness.FILE).read_text())
    assert len(recorded["mini"]["curves"]) == 5


def test_a_missed_target_is_a_finding(
    training: FakeTraining, tmp_path: Path, capsys: Printed
) -> None:
    figure = tmp_path / "staleness.png"
    asked = ("--delays", "0", "16", "--seeds", "1", "2", "--figure", str(figure))
    assert cepheid_staleness(*asked) == 1
    rows = [row.split()[:4] for row in capsys.readouterr().out.splitlines()]
    assert ["delay", "16", "2", "2"] in rows
    assert figure.exists()
    assert cepheid_staleness("--delays", "16", "--seeds", "1") == 1
    assert "e_rmse after 1 epochs" in capsys.readouterr().out  # its last


def test_recorded_runs_belong_to_the_definition() -> None:
    for name in definition.names():
        for scale in definition.scales(name):
            entry = evidence.read_file(name, staleness.FILE).get(scale)
            if entry:
                assert entry["definition_digest"] == definition.load(name, scale).digest
