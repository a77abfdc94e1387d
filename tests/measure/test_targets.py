"""`cepheid measure targets` as its user meets it, and how safely targets separate."""

import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.measure.studies.targets import estimate_miss_probability
from cepheid.rules import definition, evidence
from cepheid.rules.evidence import Curve, Evidence
from cepheid.tools.measure.__main__ import main
from tests.tools.no_training import GOOD, POOR, FakeTraining, Points, replace_training

pytest.importorskip("torch", reason="measuring needs the extra torch")

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
    replace_training(fake, tmp_path / "benchmarks", monkeypatch)
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
            evidence.save(MINI.name, MINI.scale, Evidence(MINI.digest, (curve,)))
        return make_points(run)

    training.make_points = record_frozen
    measure("--only", "correct", "--seeds", "2")
    assert recorded() == {("frozen", 1), (CORRECT, 1), (CORRECT, 2)}


# Margins: MINI has e_rmse <= 0.117, nll <= -1.97, 72,000 samples ----------------------------------

EVERY, BUDGET = MINI.timing.eval_every_samples, MINI.timing.max_samples
GENERATION = definition.load("galaxy_generation", "mini")


def correct(seed: int, samples: int, nll: float = -3.0) -> Curve:
    poor, good = {"e_rmse": 1.0, "nll": 9.0}, {"e_rmse": 0.08 + seed / 1000, "nll": nll}
    return Curve("correct", seed, 1.0, ((EVERY, poor), (samples, good)))


def gather(*curves: Curve) -> Evidence:
    return Evidence(MINI.digest, curves)


@given(needed=st.lists(st.integers(2, 14), min_size=2, max_size=12))
def test_the_chance_of_a_miss_is_that_of_student(needed: list[int]) -> None:
    """With a spread of one evaluation interval at least, and of two seeds or more."""
    assert estimate_miss_probability(gather(correct(1, EVERY * needed[0])), MINI) is None
    samples = [EVERY * each for each in needed]
    found = estimate_miss_probability(gather(*map(correct, range(12), samples)), MINI)
    count, mean = len(samples), sum(samples) / len(samples)
    spread = max(EVERY, statistics.stdev(samples)) * (1 + 1 / count) ** 0.5
    assert found == pytest.approx(stats.t.sf((BUDGET - mean) / spread, count - 1))


def test_a_run_that_generates_misses_by_its_metrics() -> None:
    target = GENERATION.quality[0]
    reached = {"higher": 1.0, "lower": -1.0}
    others = {other.metric: reached[other.better] for other in GENERATION.quality[1:]}  # all seeds

    def judge(*values: float) -> float | None:
        curves = [
            Curve("correct", seed, 1.0, ((1, {target.metric: value, **others}),))
            for seed, value in enumerate(values)
        ]
        return estimate_miss_probability(Evidence("", tuple(curves)), GENERATION)

    low, high = target.target / 2, target.target * 0.99
    assert judge(low, low) == 0
    assert (judge(low, low * 1.1) or 0) < (judge(low, high) or 0)
