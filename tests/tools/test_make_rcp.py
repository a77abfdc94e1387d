"""`cepheid rcp` as its user meets it. Runs are replaced by the curves that they would leave."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="measuring needs the extra torch")

from cepheid.measure.engine import provenance
from cepheid.measure.engine.trainings import Training
from cepheid.rules import definition, evidence, rcp
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import Curve, Evidence
from cepheid.tools.cli import main
from tests import tiny
from tests.compliance.asserting import require
from tests.tools.no_training import GOOD, POOR, FakeTraining, Points, replace_training

Printed = pytest.CaptureFixture[str]
MINI = definition.load("galaxy_shape", "mini")
MACHINE = {"framework": "torch", "device": "cpu", "execution": {"precision": "bf16"}}


def make_points(run: Training) -> Points:
    return (3008, POOR), (6016, GOOD)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTraining:
    fake = FakeTraining(make_points)
    fake.describe = lambda run: MACHINE
    replace_training(fake, tmp_path / "benchmarks", monkeypatch)
    return fake


def cepheid_rcp(*arguments: str) -> int:
    return main(["rcp", "galaxy_shape", *arguments])


def test_nothing_measured_yet(training: FakeTraining, capsys: Printed) -> None:
    assert cepheid_rcp() == 0
    assert "nothing is recorded yet" in capsys.readouterr().out
    assert training.runs == []


def test_measures_five_seeds_of_each_batch_size(training: FakeTraining, capsys: Printed) -> None:
    rate = "opt_base_learning_rate=0.003"
    assert cepheid_rcp("--batch-size", "16", "32", "64", "--set", rate) == 0
    assert training.sizes == [(size, seed) for size in (16, 32, 64) for seed in range(1, 6)]
    points = require(rcp.load("galaxy_shape", "mini"))
    assert points.definition_digest == MINI.digest
    assert rcp.find_problems(points, MINI) == []
    first = points.points[0]
    assert first.hyperparameters["opt_base_learning_rate"] == 0.003
    assert first.measured == (MACHINE,)
    assert first.runs[4] == rcp.Run(5, 6016, round(6016 / 6000, 4), 1.2, GOOD, 5664.064)
    printed = capsys.readouterr().out
    assert "problem" not in printed
    line = next(line for line in printed.splitlines() if line.startswith("32"))
    for said in ("5 of 5", "6,016", "5,664", "1.00", rate):
        assert said in line


def test_runs_of_measure_targets_are_reused(training: FakeTraining, capsys: Printed) -> None:
    curves = [
        Curve(variant, seed, 2.0, ((3008, GOOD),), measured=MACHINE)
        for variant, seed in (("correct", 2), ("correct", 3), ("broken", 1))
    ]
    evidence.save(MINI.name, MINI.scale, Evidence(MINI.digest, tuple(curves)))
    assert cepheid_rcp("--batch-size", "32", "--runs", "3") == 0
    assert training.sizes == [(32, 1)]
    assert "3 of 3" in capsys.readouterr().out
    points = require(rcp.load(MINI.name, MINI.scale))
    assert sorted(run.seed for run in points.points[0].runs) == [1, 2, 3]


@pytest.mark.parametrize(
    ("digest", "line"),
    [
        ("0" * 64, "--batch-size 32"),
        (MINI.digest, "--batch-size 16"),
        (MINI.digest, "--batch-size 32 --set precision=fp32"),
    ],
)
def test_other_runs_are_made(digest: str, line: str, training: FakeTraining) -> None:
    curve = Curve("correct", 1, 2.0, ((3008, GOOD),))
    evidence.save(MINI.name, MINI.scale, Evidence(digest, (curve,)))
    assert cepheid_rcp(*line.split(), "--runs", "1") == 0
    assert len(training.runs) == 1


def test_the_same_command_continues_after_an_interruption(training: FakeTraining) -> None:
    def interrupt_one(run: Training) -> Points:
        if training.sizes[-1] == (32, 2):
            raise KeyboardInterrupt
        return make_points(run)

    training.make_points = interrupt_one
    with pytest.raises(KeyboardInterrupt):
        cepheid_rcp("--batch-size", "16", "32")
    training.make_points, training.runs = make_points, []
    assert cepheid_rcp("--batch-size", "16", "32", "--runs", "6") == 0
    assert training.sizes == [(16, 6), (32, 2), (32, 3), (32, 4), (32, 5), (32, 6)]


def test_a_run_that_misses_is_kept_with_code_1(training: FakeTraining, capsys: Printed) -> None:
    training.make_points = lambda run: ((6016, POOR if run.config.seed == 3 else GOOD),)
    assert cepheid_rcp("--batch-size", "32") == 1
    printed = capsys.readouterr().out
    assert "4 of 5" in printed
    assert "problem: batch size 32: seed 3 missed the targets" in printed
    assert cepheid_rcp() == 1
    assert cepheid_rcp("--batch-size", "32") == 1  # and it is not made again
    assert len(training.runs) == 5


def test_other_hyperparameters_do_not_replace_what_was_measured(training: FakeTraining) -> None:
    cepheid_rcp("--batch-size", "32")
    before = (definition.BENCHMARKS / "galaxy_shape" / "rcp.json").read_bytes()
    with pytest.raises(UserError, match=r"opt_base_learning_rate 0\.002, not 0\.003") as error:
        cepheid_rcp("--batch-size", "16", "32", "--set", "opt_base_learning_rate=3e-3")
    assert "rcp.json" in str(error.value)
    assert (definition.BENCHMARKS / "galaxy_shape" / "rcp.json").read_bytes() == before


def test_points_of_another_definition_are_reported_and_measured_again(
    training: FakeTraining, capsys: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cepheid_rcp("--batch-size", "16")
    capsys.readouterr()
    rcp_file = tmp_path / "benchmarks" / "galaxy_shape" / "rcp.json"
    tiny.install(tmp_path / "changed", monkeypatch, "galaxy_shape", timing={"max_samples": 90_000})
    rcp_file.rename(tmp_path / "changed" / "galaxy_shape" / "rcp.json")
    assert cepheid_rcp() == 0
    assert "problem: they were measured for another version" in capsys.readouterr().out
    cepheid_rcp("--batch-size", "32")
    points = require(rcp.load("galaxy_shape", "mini"))
    assert [point.batch_size for point in points.points] == [32]


def test_a_real_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition as it is, but for sizes and targets that any model reaches."""
    pytest.importorskip("galsim", reason="the data need the extra galsim")
    folder = tmp_path / "benchmarks"
    tiny.install(
        folder, monkeypatch, "galaxy_shape", reachable=True, data=tiny.SIZES, timing=tiny.TIMING
    )
    arguments = ["--batch-size", "8", "--runs", "2", "--set", "compile=off"]
    assert cepheid_rcp(*arguments, "--data", str(tmp_path)) == 0
    points = require(rcp.load("galaxy_shape", "mini"))
    (point,) = points.points
    assert point.samples == (32, 32)
    assert point.runs[0].quality != point.runs[1].quality
    assert point.measured[0]["training_step"] == "eager"
    assert set(provenance.HARDWARE) < set(point.measured[0])
