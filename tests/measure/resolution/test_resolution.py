"""The simulation of scores: draws are scored as real results are, and rates are as designed."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from cepheid.compliance.score import comparison
from cepheid.compliance.score.convergence import Expected, Loading, judge
from cepheid.compliance.score.levels import Level, measure_score
from cepheid.leaderboard.pages.benchmark_page import describe_resolution
from cepheid.measure.studies.resolution import resolution, simulation
from cepheid.measure.studies.resolution.simulation import Setting
from cepheid.rules import definition, evidence
from cepheid.tools.measure.__main__ import main

RUNS, REFERENCE = 5, 10
PAIR = np.array([0]), np.array([1])


class Replay:
    """Gives the numbers that a simulation draws, so that a test scores the same ones."""

    def __init__(self, seed: int) -> None:
        self.source, self.drawn = np.random.default_rng(seed), []  # type: ignore[var-annotated]

    def normal(self, mean: float, spread: float, shape: tuple[int, ...]) -> np.ndarray:
        values = self.source.normal(mean, spread, shape)
        self.drawn.append(values)
        return values


@pytest.mark.parametrize("later", [0.0, 0.08])
def test_a_simulated_pair_is_scored_as_two_results_are(later: float) -> None:
    """Scores, variances, charges, early results and p, some of them of a charged and a free one."""
    replay, tables = Replay(1), 60
    setting = Setting(RUNS, REFERENCE, 0.02, lambda source, shape: source.normal(0, 0.05, shape))
    draws = simulation.draw_results(setting, replay, tables, 2, later)  # type: ignore[arg-type]
    speeds, crossings, reference = replay.drawn
    p = simulation.find_probabilities(draws, *PAIR, 0.0)
    kinds = set()
    for table in range(tables):
        logs = reference[table, 0]
        variance = float(np.var(logs, ddof=1))
        loading = Loading("16", 1.0, variance / REFERENCE, REFERENCE - 1)
        expected = Expected(16, float(logs.mean()), math.sqrt(variance), (loading,))
        levels: list[Level] = []
        for system in range(2):
            crossed = np.exp(crossings[table, system] + later).tolist()
            found = judge(crossed, 16, expected)
            assert (found.verdict == "early") == draws.is_early[table, system]
            if found.verdict == "early":
                continue
            level = measure_score((60 * np.exp(speeds[table, system])).tolist(), found, crossed)
            assert level is not None
            levels.append(level)
            assert level.log_mean == pytest.approx(draws.value[table, system])
            assert level.variance == pytest.approx(draws.variance[table, system])
            assert level.is_charged == (draws.loading[table, system] == 0)
        if len(levels) == 2:
            kinds.add((levels[0].is_charged, levels[1].is_charged))
            (chance,) = comparison.find_probabilities(levels, np.array([0]), np.array([1]))
            assert chance == pytest.approx(p[table, 0], rel=1e-6)
    assert later == 0 or len(kinds) == 4


def test_holm_tells_a_table_apart_where_its_first_step_does() -> None:
    draws = simulation.draw_results(
        Setting(RUNS, 2, 0.03, None), np.random.default_rng(2), 200, systems=4
    )
    order = [np.argsort(table) for table in draws.value]
    apart = [
        bool(
            comparison.find_different_pairs(
                [Level(float(value[k]), float(error[k]), RUNS - 1, RUNS) for k in places]
            )
        )
        for value, error, places in zip(draws.value, draws.variance, order, strict=True)
    ]
    assert simulation.find_false_ranks(draws) == pytest.approx(sum(apart) / 200)


def test_rates_are_those_of_the_design() -> None:
    """N = 10, σ = 2%, c = 7%: coverage 0.957, a pair sees 2.7%, 10% early rejected with 0.90."""
    setting = Setting(10, 20, 0.02, lambda source, shape: source.normal(0, 0.07, shape))
    source = np.random.default_rng(3)
    alone = simulation.draw_results(setting, source, 20_000)
    given, whole = simulation.find_coverage(alone)
    assert given == pytest.approx(0.957, abs=0.008)
    assert whole == pytest.approx(0.95, abs=0.008)
    assert alone.is_early.mean() == pytest.approx(0.011, abs=0.004)
    assert 1 - alone.loading.mean() == pytest.approx(0.02, abs=0.004)
    early = simulation.draw_results(setting, source, 4_000, later=math.log(0.9))
    assert early.is_early.mean() == pytest.approx(0.9, abs=0.02)
    late = simulation.draw_results(setting, source, 4_000, later=math.log(1.1))
    assert 1 - late.loading.mean() == pytest.approx(0.9, abs=0.02)
    pairs = simulation.draw_results(setting, source, 10_000, systems=2)
    assert simulation.find_resolution(pairs, 0.05) == pytest.approx(0.027, abs=0.002)
    assert simulation.find_resolution(pairs, 0.05 / 45) > 0.04
    noise = simulation.draw_results(Setting(2, 2, 5.0, None), source, 500, systems=2)
    assert math.isinf(simulation.find_resolution(noise, 0.05 / 45))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolution, "RESULTS", 400)
    monkeypatch.setattr(resolution, "TABLES", 100)


def test_the_command(quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    arguments = ["resolution", "kfac", "--scale", "mini", "--runs", "7", "--spread", "3"]
    assert main([*arguments, "--output", str(file)]) == 0
    text = capsys.readouterr().out
    assert "scatter by 3% between runs" in text
    assert "standard error" in text
    (found,) = json.loads(file.read_text())["resolutions"]
    assert (found["runs"], found["reference_runs"], found["spread"]) == (7, 20, 0.03)
    assert 0.9 < found["coverage"] < 1
    assert found["early"][0] < 0.1 < found["early"][1] < found["early"][2]
    again = tmp_path / "again.json"
    assert main([*arguments, "--output", str(again)]) == 0
    assert file.read_text() == again.read_text()  # seeded


def test_what_generates_has_no_convergence_and_what_has_no_runs_nothing(
    quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    found = resolution.simulate(definition.load("galaxy_generation", "mini"), 5, 0.02)
    assert (found.early, found.late, found.scatter) == (None, None, None)
    assert found.pair is not None
    assert found.coverage == found.coverage_given
    assert main(["resolution", "kfac", "--scale", "full"]) == 1
    assert "kfac, full scale: no recorded runs" in capsys.readouterr().out


@pytest.mark.parametrize("name", definition.names())
def test_the_pages_have_what_is_recorded(name: str) -> None:
    """Each benchmark with recorded runs has its resolution, of this very definition."""
    for scale in definition.scales(name):
        one = definition.load(name, scale)
        found = evidence.load(one)
        known = evidence.read_file(name, evidence.RESOLUTION_FILE).get(scale)
        assert (known is None) == (found is None or len(found.correct) < 3)
        if known:
            command = f"cepheid measure resolution {name} --record"
            assert known["definition_digest"] == one.digest, command
            assert known["runs"] == one.runs.required
            assert describe_resolution(one).startswith(f"with {one.runs.required} runs")
