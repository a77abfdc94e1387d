"""Logs of MLPerf v0.5: read and scored, not judged."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.log.version_05 import parse
from cepheid.compliance.score.scores import score_times
from cepheid.rules import rounds

ROUND = rounds.load("mlperf-training-0.5")


def line(key: str, seconds: float, value: object = None) -> str:
    text = "" if value is None else f": {json.dumps(value)}"
    return f":::MLPv0.5.0 gnmt {seconds:.9f} (train.py:7) {key}{text}"


def make_log(minutes: float = 1.0, stop: object = {"success": "true"}) -> list[str]:
    end = 1e9 + 60 * minutes
    return [
        "a line of the program",
        line("run_clear_caches", 1e9 - 5),
        line("eval_target", 1e9 - 1, 21.8),
        f"INFO:mlperf_compliance:{line('run_start', 1e9)}",
        line("opt_learning_rate", 1e9 + 1, 0.1).replace("rate:", "rate :"),
        line("eval_accuracy", 1e9 + 2, {"epoch": 0, "value": 20.0}),
        line("eval_accuracy", 1e9 + 3, {"value": 21.9, "epoch": 1}) + "\r",
        line("run_stop", end, stop),
        line("run_final", end),
    ]


def read(lines: list[str], tmp_path: Path) -> RunLog:
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return runlog.read(path)


@pytest.mark.parametrize(
    ("stop", "status"),
    [({"success": True}, "success"), ({"success": "true"}, "success"), (None, "success"),
     ({"success": False}, "aborted"), ({"success": []}, "success")],
)  # fmt: skip
def test_a_log_is_read(stop: object, status: str, tmp_path: Path) -> None:
    run = read(make_log(stop=stop), tmp_path)
    assert run.problems == ()
    assert run.dialects == {"mlp": 2}
    assert run.text("submission_benchmark") == "gnmt"
    assert run.value("opt_learning_rate") == 0.1
    assert (run.status, run.seconds) == (status, 60)
    assert [(event.line, event.value) for event in run.evaluations] == [(6, 20.0), (7, 21.9)]
    if status == "success":
        assert run.progress == (2, False)


def test_without_its_word_a_run_has_converged_at_its_target_alone(tmp_path: Path) -> None:
    lines = [text.replace("21.9", "21.7") for text in make_log(stop=None)]
    assert not read(lines, tmp_path).converged


@pytest.mark.parametrize("broken", ["eval_target: {", "", "eval_target: " + "[" * 90_000])
def test_what_is_lost_is_named(broken: str, tmp_path: Path) -> None:
    lines = make_log()
    lines[2] = f":::MLPv0.5.0 gnmt 1.5 (train.py:7) {broken}"
    run = read(lines, tmp_path)
    assert [(problem.line, problem.lost) for problem in run.problems] == [(3, True)]
    assert run.seconds == 60


def test_a_result_is_scored_and_not_judged(tmp_path: Path) -> None:
    folder = tmp_path / "acme" / "results" / "box" / "gnmt"
    folder.mkdir(parents=True)
    for number in range(10):
        log = folder / f"result_{number}.txt"
        log.write_text("\n".join(make_log(number + 1)), encoding="utf-8")
    judgement = judge([package.read(tmp_path, ROUND.layout)], ROUND)
    assert not any(finding.is_error for finding in judgement.findings)
    (result,) = judgement.results
    assert result.benchmark is not None
    assert score_times(result.runs, result.benchmark.runs).main.mean == pytest.approx(5.5)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_no_exception(rest: bytes, is_first: bool) -> None:
    for text in (b":::MLPv0.5" + rest, b":::MLPv0.5.0 gnmt 1.5 (a:1) run_stop: " + rest):
        assert all(record["key"] for record in parse(text, is_first))
