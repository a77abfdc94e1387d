"""Scores: the olympic mean against its definition, and numbers for which no rule vouches."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.summary import ResultSummary, RunSummary, summarize_run
from cepheid.compliance.score import convergence
from cepheid.compliance.score.convergence import Convergence
from cepheid.compliance.score.kinds import MINUTES, SCORE, TRAINING
from cepheid.compliance.score.scores import list_crossings, score_generation
from cepheid.compliance.score.standing import (
    VOUCHED_BY,
    Standing,
    is_vouched_for,
    judge_result,
    withhold,
)
from cepheid.compliance.score.trimmed import trimmed_mean
from cepheid.leaderboard.build import make_site_files
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.metrics import compute_generation_scores
from tests.compliance.asserting import require
from tests.compliance.builder import (
    line_number,
    power_lines,
    put,
    run_records,
    write_log,
    write_power,
    write_result,
)
from tests.compliance.judging import make_site
from tests.compliance.score.test_convergence import make_points

MINI = definition.load("galaxy_shape", "mini")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("count", "drop"), [(5, 1), (10, 2), (20, 4), (7, 0)])
def test_yuen_agrees_with_scipy(seed: int, count: int, drop: int) -> None:
    """scipy's trimmed t-test is Yuen's: two samples apart by d give t = d / sqrt(2) / SE."""
    values = np.random.default_rng(seed).gamma(9.0, 2.0, count)
    mean, half_width = trimmed_mean(values.tolist(), drop, drop)
    assert half_width is not None
    assert mean == pytest.approx(stats.trim_mean(values, drop / count))
    test = stats.ttest_ind(values + 3.0, values, equal_var=False, trim=drop / count)
    standard_error = 3.0 / math.sqrt(2) / test.statistic
    quantile = stats.t.ppf(0.975, count - 2 * drop - 1)
    assert half_width == pytest.approx(quantile * standard_error)


def test_a_run_that_did_not_converge_costs_its_place_only() -> None:
    with_infinity = trimmed_mean([1.0, 2.0, 4.0, 5.0, math.inf], 1, 1)
    assert with_infinity == trimmed_mean([1.0, 2.0, 4.0, 5.0, 9.0], 1, 1)
    assert trimmed_mean([3.0, 1.0, 2.0], 1, 1) == (2.0, None)  # no interval from one value


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, math.inf, math.inf]])
def test_nothing_finite_left_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="no finite values"):
        trimmed_mean(values, 1, 1)


def _runs(folder: Path, minutes: list[float | None]) -> list[RunSummary]:
    """Logs of runs that took so long; None for one that did not converge."""
    runs = []
    for index, wanted in enumerate(minutes):
        records = run_records(MINI, index, converged=wanted is not None)
        stop, start = (records[line_number(records, key) - 1] for key in ("run_stop", "run_start"))
        stop["time_ms"] = start["time_ms"] + int(60_000 * (wanted or 1))
        log = runlog.read(write_log(folder / f"result_{index}.txt", records))
        runs.append(summarize_run(log, definition=MINI))
    return runs


def test_score_of_a_result(tmp_path: Path) -> None:
    assert (MINI.runs.required, MINI.runs.drop_fastest, MINI.runs.drop_slowest) == (5, 1, 1)
    found = judge_result(_runs(tmp_path, [5.0, 1.0, None, 2.0, 4.0]), MINI, [])
    assert found.verdict == "scored"
    assert found.score is not None
    assert found.score.kind is TRAINING
    assert (found.score.is_score, list(found.score.estimates)) == (False, [MINUTES])
    assert found.score.why == "1 of 5 runs did not converge, and a score allows 0"
    assert found.score.main.mean == found.cost == pytest.approx(11 / 3)
    assert found.score.main.low == 0.0  # no time is negative, whatever Student's t says
    expected = 11 / 3 + 4.302652729911275 * math.sqrt(9.2 / 6)
    assert found.score.main.high == pytest.approx(expected)


def _compare(runs: list[RunSummary], reference: list[float] | None, size: int) -> Convergence:
    points = make_points({32: reference}) if reference else None
    return convergence.compare(list_crossings(runs, MINI), size, points, MINI)


def test_the_score_is_the_pace_times_the_samples_of_the_reference(tmp_path: Path) -> None:
    runs = _runs(tmp_path, [5.0, 1.0, 3.0, 2.0, 4.0])
    crossing, trained = runs[0].crossing, runs[0].trained
    assert crossing is not None
    assert trained is not None
    assert trained - MINI.timing.eval_every_samples < crossing <= trained
    reference = [crossing * share for share in (0.8, 0.9, 1.0, 1.1, 1.25)]
    found = require(judge_result(runs, MINI, [], _compare(runs, reference, 32)).score)
    assert found.level is not None
    needed, geometric = stats.gmean(reference), 120 ** (1 / 5)
    assert found.estimates[SCORE].mean == pytest.approx(geometric / trained * needed)
    assert found.estimates[MINUTES].mean == pytest.approx(3)
    assert (found.main, found.counted) == (found.estimates[SCORE], frozenset(range(5)))
    assert not found.level.is_charged
    sooner = [crossing / 3 * share for share in (1, 1.01, 1.02, 1.03, 1.04)]
    late = require(judge_result(runs, MINI, [], _compare(runs, sooner, 32)).score)
    assert late.level is not None
    assert late.level.is_charged
    crossed = stats.gmean([run.crossing or 0 for run in runs])
    assert late.estimates[SCORE].mean == pytest.approx(geometric / trained * crossed)


def test_without_reference_points_there_is_only_a_time(tmp_path: Path) -> None:
    runs, why = _runs(tmp_path, [5.0, 1.0, 3.0, 2.0, 4.0]), "there are no reference points"
    for points, size, more in ((None, 32, ""), ([1e4] * 5, 33, " at such a batch size")):
        found = require(judge_result(runs, MINI, [], _compare(runs, points, size)).score)
        assert (found.is_score, found.why, list(found.estimates)) == (False, why + more, [MINUTES])
    open_division = require(judge_result(runs, MINI, []).score)
    assert "open division" in open_division.why


def test_a_run_that_did_not_converge_counts_with_its_budget(tmp_path: Path) -> None:
    runs = _runs(tmp_path, [1.0] * 9 + [None])
    ten = replace(MINI, runs=replace(MINI.runs, required=10))
    counts = list_crossings(runs, ten)
    assert counts[-1] == MINI.timing.max_samples
    points = make_points({32: [counts[0] * share for share in (0.5, 1, 1.5, 2, 0.7)]})
    found = convergence.compare(counts, 32, points, ten)
    score = require(judge_result(runs, ten, [], found).score)
    assert score.is_score
    assert None not in score.values


def test_generation_averages_all_runs(tmp_path: Path) -> None:
    rates = [4907.2, 4417.4, 4678.4, 4601.0, 5063.3]
    made = ({"latency_ms_p50": 1.0 + k, "images_per_second": rate} for k, rate in enumerate(rates))
    runs = [
        RunSummary(tmp_path, number, "success", 60.0, generation=each)
        for number, each in enumerate(made)
    ]
    found = require(score_generation(runs))
    # There is no p99 without requests.
    assert set(found.estimates) == {"latency_ms_p50", "images_per_second"}
    interval = [found.main.mean, found.main.low, found.main.high]
    assert interval == pytest.approx([4727.992141, 4422.848694, 5054.188201])
    assert found.cost == pytest.approx(1 / 4727.992141)
    assert found.estimates["latency_ms_p50"].mean == pytest.approx(120 ** (1 / 5))
    assert score_generation([*runs[1:], replace(runs[0], generation={})]) is None
    assert "missed" in Standing("scored").text


@pytest.mark.parametrize(("requests", "has_p99"), [(999, False), (1000, True)])
def test_the_99th_percentile_needs_a_thousand_requests(requests: int, has_p99: bool) -> None:
    seconds = [[0.001 * (1 + number % 100) for number in range(requests)], [2.0, 4.0]]
    found = compute_generation_scores([1, 30], seconds)
    assert ("latency_ms_p99" in found) == has_p99
    assert found["images_per_second"] == pytest.approx(60 / 6)
    assert found["latency_ms_p90"] == pytest.approx(90)


def test_too_few_runs_or_no_benchmark_are_provisional(tmp_path: Path) -> None:
    found = judge_result(_runs(tmp_path, [5.0, None, 3.0]), MINI, [])
    assert found == Standing("provisional", so_far={MINUTES: 4.0}, runs=3, required=5)
    assert found.text == "provisional: 3 of 5 runs"
    none = judge_result(_runs(tmp_path, [None]), MINI, [])
    assert none == Standing("provisional", runs=1, required=5)
    without_benchmark = judge_result(_runs(tmp_path, [5.0]), None, [])
    assert without_benchmark == Standing("provisional", runs=1, required=0)


def test_a_score_that_proves_nothing_yet_is_provisional(tmp_path: Path) -> None:
    for provisional, code, says in [
        ("a guess", "T9.CODE", "its targets may still change"),
        (None, "T21.not_measured", "there are no reference convergence points"),
        ("a guess", "T21.not_measured", "may still change and there are no reference"),
        (None, "T21.missing_point", ""),
    ]:
        runs = _runs(tmp_path, [5.0, 1.0, 3.0, 2.0, 4.0])
        chosen = replace(MINI, provisional=provisional)
        found = judge_result(runs, chosen, [Finding(code, "note", tmp_path, None, "so so")])
        assert found.score is not None
        assert found.verdict == ("provisional" if says else "scored")
        assert says in found.doubt
        assert found.text == (f"provisional: {found.doubt}" if says else "")
        assert found.place == (1 if says else 0)


def test_an_error_rejects_and_a_note_does_not(tmp_path: Path) -> None:
    runs = _runs(tmp_path, [5.0, 1.0, 3.0, 2.0, 4.0])
    error = Finding("T9.CODE", "error", tmp_path, None, "wrong")
    note = Finding("T17.CODE", "note", tmp_path, None, "so so")
    found = judge_result(runs, MINI, [note, error])
    assert found == Standing("rejected", errors=(error,))
    assert (found.score, found.so_far, found.text) == (None, {}, "rejected: 1 error (T9)")
    assert judge_result(runs, MINI, [note]).verdict == "scored"


FOLDER = Path("results/box/star_shape-mini-closed")
RUNS = tuple(
    RunSummary(
        FOLDER / f"result_{number}.txt", number, "success", 60.0,
        samples=100, crossing=90.0, trained=100, joules=5.0,
        generation={"images_per_second": 2.0}, update_time_ratio=1.5,
    )
    for number in range(3)
)  # fmt: skip


def withhold_after(code: str, path: Path, severity: str = "error") -> list[set[str]]:
    """Return the names of the numbers that each run loses."""
    found = Finding(code, severity, path, None, "wrong")  # type: ignore[arg-type]
    left = withhold(ResultSummary(RUNS), [found]).runs

    def list_known(run: RunSummary) -> set[str]:
        return {name for name in VOUCHED_BY if getattr(run, name) not in (None, {})}

    return [list_known(run) - list_known(now) for run, now in zip(RUNS, left, strict=True)]


TIMED = {"seconds", "generation", "update_time_ratio", "joules"}
LOST: dict[str, tuple[str, str, list[set[str]]]] = {
    "of a power log, the energy": ("T23.gap", "power_1.csv", [set(), {"joules"}, set()]),
    "of a folder, that of all its runs": ("T23.missing", "", [{"joules"}] * 3),
    "of a clock, all that was timed": ("T4.backwards", "result_0.txt", [TIMED, set(), set()]),
    "of judging, everything": (
        "S15.not_judged", "result_2.txt", [set(), set(), VOUCHED_BY.keys() - {"pace"}]),
    "of a hyperparameter, nothing": ("T12.not_allowed", "", [set()] * 3),
    "of a description, nothing": ("S2.schema", "", [set()] * 3),
}  # fmt: skip


@pytest.mark.parametrize("error", LOST)
def test_an_error_takes_the_numbers_that_its_rule_vouches_for(error: str) -> None:
    code, name, lost = LOST[error]
    assert withhold_after(code, FOLDER / name) == lost


def test_a_warning_withholds_no_number() -> None:
    """So a waiver does not, either: it makes a warning of an error."""
    assert withhold_after("T10.samples", FOLDER, "warning") == [set()] * 3
    assert is_vouched_for("samples", [Finding("T10.samples", "warning", FOLDER, 1, "few")])
    assert not is_vouched_for("samples", [Finding("T10.samples", "error", FOLDER, 1, "few")])


def shift_power(lines: list[str], by_ms: float) -> list[str]:
    rows = [line.partition(",") for line in lines[2:]]
    return lines[:2] + [f"{float(time) + by_ms},{power}" for time, _, power in rows]


BREACHES: dict[str, tuple[Callable[[Path, Definition], object], set[str]]] = {
    "the power log begins after run_stop": (
        lambda folder, mini: (folder / "power_1.csv").write_text(
            "\n".join(shift_power(power_lines(run_records(mini, 1), {"node0": 900.0}), 1e6))),
        {"energy_joules"}),
    "an evaluation is late": (
        lambda folder, mini: write_log(folder / "result_1.txt", [
            record for record in run_records(mini, 1)
            if record["metadata"].get("samples_count") not in (50, 100)]),
        {"samples_to_target"}),
    "the log is for another place": (
        lambda folder, mini: write_log(
            folder / "result_1.txt", put(run_records(mini, 1), "submission_org", value="bolt")),
        {"minutes", "samples_to_target", "energy_joules"}),
}  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES)
def test_the_site_shows_no_number_without_a_rule(breach: str, star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    for index in range(5):
        write_power(folder, run_records(star_shape, index), index, {"node0": 900.0})
    write, lost = BREACHES[breach]
    write(folder, star_shape)
    files = dict(make_site_files(make_site()))
    (result,) = json.loads(files["results.json"])["results"]
    assert result["verdict"] == "rejected"
    names = ("minutes", "samples_to_target", "energy_joules")
    missing = [{name for name in names if run[name] is None} for run in result["run_logs"]]
    assert lost <= missing[1]
    assert missing[0] == set()
