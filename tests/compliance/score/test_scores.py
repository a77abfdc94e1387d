"""Scores: the olympic mean against its definition, Yuen's interval against an independent one."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.summary import RunSummary, summarize_run
from cepheid.compliance.score.kinds import MINUTES, TRAINING
from cepheid.compliance.score.standing import Standing, judge_result
from cepheid.compliance.score.trimmed import trimmed_mean
from cepheid.rules import definition
from tests.compliance.builder import line_number, run_records, write_log

MINI = definition.load("galaxy_shape", "mini")
times = st.floats(0.01, 1e4)
results = st.lists(times, min_size=5, max_size=12)


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


def test_yuen_by_hand() -> None:
    """1 2 4 5 9: the mean is that of 2 4 5; winsorised 2 2 4 5 5 has mean 3.6 and S = 9.2."""
    mean, half_width = trimmed_mean([9.0, 1.0, 4.0, 2.0, 5.0], 1, 1)
    assert mean == pytest.approx(11 / 3)
    assert half_width == pytest.approx(4.302652729911275 * math.sqrt(9.2 / (3 * 2)))


def test_a_run_that_did_not_converge_costs_its_place_only() -> None:
    with_infinity = trimmed_mean([1.0, 2.0, 4.0, 5.0, math.inf], 1, 1)
    assert with_infinity == trimmed_mean([1.0, 2.0, 4.0, 5.0, 9.0], 1, 1)


def test_no_interval_from_one_value() -> None:
    assert trimmed_mean([3.0, 1.0, 2.0], 1, 1) == (2.0, None)


@pytest.mark.parametrize("values", [[], [1.0, 2.0], [1.0, math.inf, math.inf]])
def test_nothing_finite_left_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="no finite values"):
        trimmed_mean(values, 1, 1)


@given(results, st.randoms())
def test_the_order_of_runs_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert trimmed_mean(shuffled, 1, 1) == trimmed_mean(values, 1, 1)


@given(results, st.floats(0.1, 100.0))
def test_the_score_scales_with_the_times(values: list[float], factor: float) -> None:
    mean, half_width = trimmed_mean(values, 1, 1)
    scaled_mean, scaled_half_width = trimmed_mean([factor * value for value in values], 1, 1)
    assert half_width is not None
    assert scaled_mean == pytest.approx(factor * mean)
    assert scaled_half_width == pytest.approx(factor * half_width, rel=1e-6, abs=1e-7 * factor)


@given(results, st.integers(0, 4), st.floats(0, 100.0))
def test_no_run_gets_faster_by_being_slower(values: list[float], index: int, delay: float) -> None:
    slower = list(values)
    slower[index] += delay
    assert trimmed_mean(slower, 1, 1)[0] >= trimmed_mean(values, 1, 1)[0] - 1e-9


@given(results)
def test_the_mean_lies_within_the_runs(values: list[float]) -> None:
    assume(len(set(values)) > 1)
    mean, _ = trimmed_mean(values, 1, 1)
    assert min(values) - 1e-9 <= mean <= max(values) + 1e-9


def _runs(folder: Path, minutes: list[float | None]) -> list[RunSummary]:
    """Logs of runs that took so long; None for one that did not converge."""
    runs = []
    for index, wanted in enumerate(minutes):
        records = run_records(MINI, index, converged=wanted is not None)
        stop, start = (records[line_number(records, key) - 1] for key in ("run_stop", "run_start"))
        stop["time_ms"] = start["time_ms"] + int(60_000 * (wanted or 1))
        log = runlog.read(write_log(folder / f"result_{index}.txt", records))
        runs.append(summarize_run(log))
    return runs


def test_score_of_a_result(tmp_path: Path) -> None:
    assert (MINI.runs.required, MINI.runs.drop_fastest, MINI.runs.drop_slowest) == (5, 1, 1)
    found = judge_result(_runs(tmp_path, [5.0, 1.0, None, 2.0, 4.0]), MINI, [])
    assert found.verdict == "scored"
    assert found.score is not None
    assert found.score.kind is TRAINING
    assert found.score.main.mean == found.cost == pytest.approx(11 / 3)
    assert found.score.main.low == 0.0  # no time is negative, whatever Student's t says
    expected = 11 / 3 + 4.302652729911275 * math.sqrt(9.2 / 6)
    assert found.score.main.high == pytest.approx(expected)


def test_too_few_runs_are_provisional(tmp_path: Path) -> None:
    found = judge_result(_runs(tmp_path, [5.0, None, 3.0]), MINI, [])
    assert found == Standing("provisional", so_far={MINUTES: 4.0}, runs=3, required=5)
    assert found.text == "provisional: 3 of 5 runs"
    assert judge_result(_runs(tmp_path, [None]), MINI, []) == Standing(
        "provisional", runs=1, required=5
    )


@pytest.mark.parametrize(
    ("provisional", "code", "says"),
    [
        ("a guess", "T9.CODE", "its targets may still change"),
        (None, "T21.not_measured", "there are no reference convergence points"),
        ("a guess", "T21.not_measured", "may still change and there are no reference"),
        (None, "T21.missing_point", ""),
    ],
)
def test_a_score_that_proves_nothing_yet_is_provisional(
    provisional: str | None, code: str, says: str, tmp_path: Path
) -> None:
    runs, chosen = (
        _runs(tmp_path, [5.0, 1.0, 3.0, 2.0, 4.0]),
        replace(MINI, provisional=provisional),
    )
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


def test_without_a_benchmark_there_is_no_score(tmp_path: Path) -> None:
    found = judge_result(_runs(tmp_path, [5.0]), None, [])
    assert found == Standing("provisional", runs=1, required=0)
