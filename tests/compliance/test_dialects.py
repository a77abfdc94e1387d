"""The dialects of MLPerf v0.5, which is scored and not judged, and of v0.6; lines of real logs."""

import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log import records, runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.log.version_05 import parse
from cepheid.compliance.score.scores import score_times
from cepheid.rules import rounds
from tests.compliance.history import gnmt_06, mll_lines
from tests.compliance.judging import judge_as_mlperf

LINES = mll_lines(gnmt_06())
ROUND = rounds.load("mlperf-training-0.6")
ANY_TIME = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
keys = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=30)


def read(content: bytes, tmp_path: Path) -> RunLog:
    path = tmp_path / "result_0.txt"
    path.write_bytes(content)
    return runlog.read(path)


def test_a_v06_log_is_read_as_any_other(tmp_path: Path) -> None:
    run = read("\n".join(LINES).encode(), tmp_path)  # without a line feed at its end
    assert run.problems == ()
    assert run.dialects == {"mll": 1}
    assert len(run.events) == len(LINES)
    assert run.text("submission_benchmark") == "gnmt"
    assert run.converged
    assert run.seconds == pytest.approx(68.11, abs=1e-6)
    assert run.progress == (2, False)
    assert [event.value for event in run.evaluations] == [20.1, 24.3]


def test_the_epochs_are_those_at_run_stop(tmp_path: Path) -> None:
    for change in [
        lambda lines: [*lines, lines[-2].replace('"epoch_num": 2', '"epoch_num": 9')],
        lambda lines: [re.sub(r'(?<="epoch_num": )[12]', lambda n: str(int(n[0]) - 1), line)
                       for line in lines],
    ]:  # fmt: skip
        stop = next(number for number, line in enumerate(LINES) if "run_stop" in line)
        evaluation = next(line for line in reversed(LINES[:stop]) if "eval_accuracy" in line)
        changed = change([*LINES[:stop], evaluation, LINES[stop]])
        assert read("\n".join(changed).encode(), tmp_path).progress == (2, False)


@ANY_TIME
@given(
    key=keys,
    value=json_values,
    metadata=st.dictionaries(st.text(), json_values, max_size=3),
    milliseconds=st.integers(0, 10**13),
    prefix=st.text(string.printable, max_size=20).filter(lambda text: ":" not in text),
)
def test_written_records_are_read_back(
    key: str,
    value: object,
    metadata: dict[str, object],
    milliseconds: int,
    prefix: str,
    tmp_path: Path,
) -> None:
    content = json.dumps({"value": value, "metadata": metadata})
    seconds = f"{milliseconds // 1000}.{milliseconds % 1000:03d}"
    text = f"{prefix}:::MLL {seconds} {key}: {content}\r\n"
    run = read(text.encode(), tmp_path)
    (event,) = run.events
    assert (event.key, event.value, event.metadata) == (key, value, metadata)
    assert event.time_ms == pytest.approx(milliseconds, abs=0.01)
    assert event.line == prefix.count("\n") + 1
    assert {problem.kind for problem in run.problems} <= {"around"}


@ANY_TIME
@given(data=st.data())
def test_flipped_bytes_can_be_read_and_checked(data: st.DataObject, tmp_path: Path) -> None:
    content = bytearray("\n".join(LINES).encode())
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=5)):
        content[position] = data.draw(st.integers(0, 255))
    for name in rounds.names():
        check_log(read(bytes(content), tmp_path), Place(name), rounds.load(name))


@ANY_TIME
@given(key=st.sampled_from([line.split()[2][:-1] for line in LINES]), value=json_values)
def test_any_value_can_be_judged(key: str, value: object, tmp_path: Path) -> None:
    metadata = dict.fromkeys(("epoch_num", "first_epoch_num", "epoch_count"), value)
    changed = f":::MLL 1.0 {key}: {json.dumps({'value': value, 'metadata': metadata})}"
    entries = [changed if line.split()[2] == f"{key}:" else line for line in LINES]
    check_log(read("\n".join(entries).encode(), tmp_path), Place(ROUND.name), ROUND)


@ANY_TIME
@given(cut=st.integers(1, 60))
def test_a_last_line_cut_off_is_truncated(cut: int, tmp_path: Path) -> None:
    run = read("\n".join(LINES)[: -min(cut, len(LINES[-1]) - 4)].encode(), tmp_path)
    assert [(problem.line, problem.kind) for problem in run.problems] == [(len(LINES), "truncated")]
    assert len(run.events) == len(LINES) - 1


def test_records_on_one_line_are_all_read(tmp_path: Path) -> None:
    run = read(f"{LINES[0]}{LINES[1]}\n{LINES[2]}\n".encode(), tmp_path)
    assert [event.line for event in run.events] == [1, 1, 2]
    assert [(problem.line, problem.kind) for problem in run.problems] == [(1, "place")]
    run = read(f"10%\r20%\r{LINES[0]}\r30%\r{LINES[1]}\r\n{LINES[2]}\n".encode(), tmp_path)
    assert [event.line for event in run.events] == [1, 1, 2]
    assert {problem.kind for problem in run.problems} == {"around"}
    lines = [*LINES, *[LINES[-3]] * 3_000, f"{LINES[0]}{LINES[1]}", LINES[-1]]
    run = read("".join(f"[1,0]<stdout>: {line}\n" for line in lines).encode(), tmp_path)
    assert len(run.events) == len(lines) + 1
    assert run.is_complete
    assert [p.line for p in run.problems if p.kind == "place"] == [len(lines) - 1]


def test_bytes_and_contents_of_others_do_no_harm(tmp_path: Path) -> None:
    run = read(LINES[1].replace("acme", "Müller").encode("latin-1") + b"\n", tmp_path)
    assert run.text("submission_org") == "Müller"
    assert [problem.kind for problem in run.problems] == ["text"]
    content = '{"value": 1, "metadata": {}, "time_ms": 7, "key": "other"}'
    run = read(f":::MLL 2.5 mine: {content}\n".encode(), tmp_path)
    assert [(event.key, event.time_ms) for event in run.events] == [("mine", 2500)]


def test_broken_lines_are_problems_and_no_exceptions(tmp_path: Path) -> None:
    for line, kind in [
        (":::MLL 1.2.3 a: {}", "fields"),
        (":::MLL 1.0 a: 5", "json"),
        (":::MLL 1.0 a: {", "json"),
        (":::MLL 1.0 a {}", "json"),
        (":::MLL -1.0 a: {}", "json"),
        (":::MLL 1e9 a: {}", "json"),
        (":::MLL 1.0 ü: {}", "json"),
        (":::MLL", "json"),
        (":::MLLX {}", "json"),
        (":::MLL 1.0 a: {}", "fields"),
        (':::MLL 1.0 a: {"value": 1}', "fields"),
        (':::MLL 1.0 a: {"value": 1, "metadata": 2}', "fields"),
        (':::MLL 1.0 a: {"value": 1, "value": 2, "metadata": {}}', "fields"),
        (':::MLL 1.0 a: {"value": 1, "metadata": {}} tail', "place"),
        (":::MLL 1.0 a: " + "[" * 100_000, "json"),
        (":::MLL 1.0 a: {" + " } " * 300_000, "place"),
        (":::MLL " * 100_000, "json"),
        (":::MLL 1.0 a: {}" * 5_000, "fields"),
        (":::MLL " + "9" * 900_000 + " a: {}", "json"),
    ]:
        run = read(f"{line}\n".encode(), tmp_path)
        assert kind in {problem.kind for problem in run.problems}
        assert all(problem.line in (1, None) for problem in run.problems)
        assert len(run.problems) <= 2 * records.PROBLEMS_MAX + 1


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


def read_05(lines: list[str], tmp_path: Path) -> RunLog:
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return runlog.read(path)


def test_a_log_is_read(tmp_path: Path) -> None:
    for stop, status in (({"success": True}, "success"), ({"success": "true"}, "success"),
                         (None, "success"), ({"success": False}, "aborted"),
                         ({"success": []}, "success")):  # fmt: skip
        run = read_05(make_log(stop=stop), tmp_path)
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
    assert not read_05(lines, tmp_path).converged


@pytest.mark.parametrize("broken", ["eval_target: {", "", "eval_target: " + "[" * 90_000])
def test_what_is_lost_is_named(broken: str, tmp_path: Path) -> None:
    lines = make_log()
    lines[2] = f":::MLPv0.5.0 gnmt 1.5 (train.py:7) {broken}"
    run = read_05(lines, tmp_path)
    assert [(problem.line, problem.lost) for problem in run.problems] == [(3, True)]
    assert run.seconds == 60


def test_a_result_is_scored_and_not_judged(tmp_path: Path) -> None:
    folder = tmp_path / "acme" / "results" / "box" / "gnmt"
    folder.mkdir(parents=True)
    for number in range(10):
        log = folder / f"result_{number}.txt"
        log.write_text("\n".join(make_log(number + 1)), encoding="utf-8")
    judgement = judge_as_mlperf(tmp_path, rounds.load("mlperf-training-0.5").name)
    assert not any(finding.is_error for finding in judgement.findings)
    (result,) = judgement.results
    assert result.benchmark is not None
    assert score_times(result.runs, result.benchmark.runs).main.mean == pytest.approx(5.5)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_are_no_exception(rest: bytes, is_first: bool) -> None:
    for text in (b":::MLPv0.5" + rest, b":::MLPv0.5.0 gnmt 1.5 (a:1) run_stop: " + rest):
        assert all(record["key"] for record in parse(text, is_first))
