"""Power logs: watts in, joules out, and nothing that a file holds does harm."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.read import powerlog
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.summary import summarize_run
from cepheid.compliance.score.kinds import MINUTES
from cepheid.compliance.score.standing import average_joules
from cepheid.compliance.score.trimmed import trim
from cepheid.leaderboard.rows.entry import list_rows
from cepheid.rules import definition
from cepheid.tools.console.tables import write_markdown, write_table
from tests.compliance.builder import power_lines, run_records, write_log, write_power, write_result
from tests.compliance.judging import judge_folder

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
HEAD = "# not measured: nothing\nmonotonic_ms,a\n"


def log_of(text: str | bytes, folder: Path) -> powerlog.PowerLog:
    path = folder / "power_0.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return powerlog.read(path)


def test_readings_stand_until_the_next_and_sensors_add_up(tmp_path: Path) -> None:
    """100 W for the 0.5 s left of it, 200 W for 2 s, 50 W for 1 s: 50 + 400 + 50 J."""
    log = log_of(HEAD + "1000,100\n2000,200\n4000,50\n6000,1000\n", tmp_path)
    assert log.problems == ()
    assert log.energy_joules(1500, 5000) == pytest.approx(500)
    assert log.energy_joules(2000, 4000) == pytest.approx(400)
    assert log.energy_joules(2500, 2600) == pytest.approx(20)
    text = HEAD.replace(",a", ",a,b") + "0,100,10\r\n1000,,20\r\n2000,300,\r\n3000,1,1\r\n"
    log = log_of(text, tmp_path)
    assert log.problems == ()
    assert log.energy_joules(0, 3000) == pytest.approx((200 + 300) + (10 + 40))


@given(st.lists(st.floats(1, 900), min_size=2, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_energy_is_the_sum_of_its_parts(watts: list[float], first: float, second: float) -> None:
    times = [500.0 * number for number in range(len(watts))]
    sensor = powerlog.Sensor("a", times, watts, range(3, 3 + len(watts)))
    start, middle, stop = sorted((0.0, first * times[-1], second * times[-1]))
    parts = sensor.energy_joules(start, middle) + sensor.energy_joules(middle, stop)
    assert sensor.energy_joules(start, stop) == pytest.approx(parts, abs=1e-6)
    seconds = (stop - start) / 1000
    low, high = min(watts) * seconds, max(watts) * seconds
    assert low - 1e-6 <= sensor.energy_joules(start, stop) <= high + 1e-6


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 900)), max_size=8),
    st.integers(0, 25),
    st.integers(0, 25),
)
def test_milliseconds_add_up(readings: list[tuple[int, int]], start: int, stop: int) -> None:
    """Also of a sensor without readings, and of one whose readings lie before or after the run."""
    held = dict(sorted(dict(readings).items()))
    sensor = powerlog.Sensor("a", [*held], [*held.values()], range(3, 3 + len(held)))
    milliwatt_seconds = 0
    for now in range(start, stop):
        known = [time for time in held if time <= now]
        milliwatt_seconds += held[known[-1]] if known else 0
    assert sensor.energy_joules(start, stop) == pytest.approx(milliwatt_seconds / 1000)


def test_a_problem_names_its_line(tmp_path: Path) -> None:
    for text, line in [
        (b"", 1),
        (b"\xff\xfe\0", 1),
        (b"# not measured:\nmonotonic_ms,a\n1,1\n", 1),
        (b"# not measured: x\n", 2),
        (b"# not measured: x\ntime,a\n", 2),
        (b"# not measured: x\nmonotonic_ms\n", 2),
        (b"# not measured: x\nmonotonic_ms,<b>\n", 2),
        *((HEAD.encode() + rows, line) for rows, line in (
            (b"1,1\n1,1\n", 4), (b"-1,1\n", 3), (b"1,1e999\n", 3), (b"1,1_0\n", 3),
            (b"1,0x10\n", 3), (b"1," + b"9" * 10_000 + b"\n", 3),
            (b"1," + b"1," * 100_000 + b"\n", 3), (b"\n", 3))),
    ]:  # fmt: skip
        (problem,) = log_of(text, tmp_path).problems
        assert problem.line == line
        assert problem.message


@given(st.binary(max_size=200))
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    folder = tmp_path_factory.mktemp("power")
    log = log_of(text, folder)
    assert log.problems or log.sensors
    log_of(HEAD.encode() + text, folder)


def test_a_power_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(powerlog, "READINGS_MAX", 10)
    rows = "".join(f"{number},1\n" for number in range(11))
    (problem,) = log_of(HEAD + rows, tmp_path).problems
    assert "too many readings" in problem.message
    monkeypatch.setattr(powerlog, "FILE_BYTES_MAX", 20)
    (problem,) = log_of(HEAD + rows, tmp_path).problems
    assert "too large" in problem.message


def test_energy_is_that_of_the_runs_of_the_score(tmp_path: Path) -> None:
    """The fastest and the slowest run do not count, whatever they used."""
    times = [5.0, 1.0, math.inf, 2.0, 4.0]
    assert sorted(trim(times, 1, 1)) == [0, 3, 4]
    runs, power, summaries = [], [], []
    for index in range(5):
        records = run_records(MINI, index)
        watts = 1e6 if index in (0, 4) else 100.0
        runs.append(runlog.read(write_log(tmp_path / f"result_{index}.txt", records)))
        lines = [*HEAD.splitlines(), "0,1", f"1,{watts}", "999999999,1"]
        path = tmp_path / f"power_{index}.csv"
        path.write_text("\n".join(lines))
        power.append(powerlog.read(path))
        summaries.append(summarize_run(runs[-1], power=power[-1]))
    assert [run.seconds for run in runs] == sorted(run.seconds or 0 for run in runs)
    seconds = [
        (stop.monotonic_ms - start.monotonic_ms) / 1000
        for run in runs[1:4]
        if (start := run.first("run_start")) and (stop := run.first("run_stop"))
        if start.monotonic_ms is not None and stop.monotonic_ms is not None
    ]
    assert average_joules(summaries, MINI.runs) == pytest.approx(100 * sum(seconds) / 3)
    without = [*summaries[:3], *map(summarize_run, runs[3:])]
    assert average_joules(without, MINI.runs) is None
    assert average_joules([summarize_run(run) for run in runs], MINI.runs) is None


@pytest.mark.parametrize("moved_ms", [1e9, -4_995_000])
def test_power_of_another_time_rejects_its_result_alone(tmp_path: Path, moved_ms: float) -> None:
    """It once ended every command in a traceback where it begins after run_stop."""
    folder = write_result(tmp_path, MINI)
    for index in range(5):
        first, header, *rows = power_lines(run_records(MINI, index), {"node0": 1000.0})
        if index == 2:
            cells = (row.partition(",") for row in rows[:20])
            rows = [f"{float(time) + moved_ms},{power}" for time, _, power in cells]
        (folder / f"power_{index}.csv").write_text("\n".join([first, header, *rows]))
    judged = judge_folder(tmp_path)
    assert {finding.code for finding in judged.findings} == {"T23.gap"}
    (row,) = list_rows(judged.results)
    assert row.standing.verdict == "rejected"


def test_energy_is_shown_beside_the_score(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    for index in range(5):
        told = {"not_measured": "the <b>switch</b>"}
        write_power(folder, run_records(MINI, index), index, {"node0": 1000.0}, **told)
    judged = judge_folder(tmp_path)
    assert judged.findings == ()
    (row,) = list_rows(judged.results)
    assert row.standing.score is not None
    assert row.kilojoules is not None
    minutes = row.standing.score.estimates[MINUTES].mean
    assert row.kilojoules == pytest.approx(minutes * 60, rel=0.01)
    assert row.counts.seeds == "derived"
    kilojoules = f"{row.kilojoules:,.3g} kJ a run, not measured: the <b>switch</b>"
    assert kilojoules in write_table([row])
    assert "&lt;b&gt;switch" in write_markdown([row])
    (folder / "power_3.csv").unlink()
    (row,) = list_rows(judge_folder(tmp_path).results)
    assert (row.standing.verdict, row.standing.score, row.energy) == ("rejected", None, None)
