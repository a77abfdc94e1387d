"""`cepheid measure targets` as its user meets it. Runs are replaced by curves."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="measuring needs the extra torch")

from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.rules import definition, evidence
from cepheid.rules.evidence import Curve, Evidence
from cepheid.tools.measure.__main__ import main
from tests.tools.no_training import GOOD, POOR, FakeTraining, Points, replace_training

Printed = pytest.CaptureFixture[str]
MINI = definition.load("galaxy_shape", "mini")
BROKEN = ("shuffled_labels", "frozen", "blind_to_orientation", "fixed_covariance")


def make_points(run: Training) -> Points:
    quality = GOOD if run.variant == CORRECT else POOR
    return (3008, quality), (MINI.timing.max_samples, quality)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    """No training, and a folder of benchmarks with nothing measured."""
    fake = FakeTraining(make_points)
    replace_training(fake, tmp_path, monkeypatch)
    return fake


def measure(*arguments: str) -> int:
    return main(["targets", "galaxy_shape", *arguments])


def recorded() -> set[tuple[str, int]]:
    found = evidence.load(MINI)
    assert found is not None
    return {(curve.variant, curve.seed) for curve in found.curves}


def test_all_variants_are_run_and_separated(training: FakeTraining, capsys: Printed) -> None:
    assert measure() == 0
    wanted = {(CORRECT, seed) for seed in range(1, 11)}
    wanted |= {(variant, seed) for variant in BROKEN for seed in (1, 2)}
    assert recorded() == set(training.names) == wanted
    printed = capsys.readouterr().out
    assert "samples to target: fewest 3,008" in printed
    assert printed.count("never reached") == 8
    assert "18 runs took 0.0 hours" in printed
    assert "one more seed misses the budget with a probability of 0.0%" in printed
    training.runs = []
    assert measure() == 0
    assert training.runs == []


def test_commands_share_the_work(training: FakeTraining, capsys: Printed) -> None:
    assert measure("--only", "correct") == 1
    assert "problem: the broken variant frozen was not tried" in capsys.readouterr().out
    assert measure("--only", *BROKEN, "--broken-seeds", "1") == 0
    assert training.names[10:] == [(variant, 1) for variant in BROKEN]


def test_what_another_process_records_meanwhile_is_kept(training: FakeTraining) -> None:
    def record_frozen(run: Training) -> Points:
        if len(training.runs) == 1:
            curve = Curve("frozen", 1, 2.0, ((MINI.timing.max_samples, POOR),))
            evidence.save(MINI.name, MINI.scale, Evidence(MINI.digest, {}, (curve,)))
        return make_points(run)

    training.make_points = record_frozen
    measure("--only", "correct", "--seeds", "2")
    assert recorded() == {("frozen", 1), (CORRECT, 1), (CORRECT, 2)}
