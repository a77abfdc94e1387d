"""The power logs of a result: one for each run, or none."""

import json
from pathlib import Path

import pytest

pytest.importorskip("mlperf_logging", reason="needs the extra torch")

from cepheid.compliance.read import powerlog
from cepheid.reference.machine.energy import Counter, Meter, Sensors
from cepheid.reference.machine.node_energy import gather
from cepheid.reference.machine.ranks import SingleProcess
from cepheid.reference.session.artifacts import keep_power_log
from cepheid.reference.session.result_folder import ResultFolder
from tests.reference.run.recorder import Recorder


def write_log(folder: Path, index: int, start_seconds: float, stop_seconds: float) -> None:
    """A log with the two records that matter here."""
    lines = [
        ":::MLLOG " + json.dumps({"key": key, "metadata": {"monotonic_ms": 1000 * seconds}})
        for key, seconds in (("run_start", start_seconds), ("run_stop", stop_seconds))
    ]
    (folder / f"result_{index}.txt").write_text("\n".join(lines))


def make_meter(watts: float) -> Meter:
    """A meter whose readings, one a second from 100 to 104 s, are those of a constant power."""
    meter = Meter(Sensors((Counter("package-0", lambda: 0.0),), "storage"))
    meter._times_seconds = [100.0, 101.0, 102.0, 103.0, 104.0]
    meter._values = [[watts * number] for number in range(5)]
    return meter


def keep(meter: Meter, folder: Path, index: int) -> tuple[str, dict[str, object]]:
    """The messages, and the energy for the report."""
    recorder = Recorder()
    measured = gather(meter, SingleProcess("none"))
    used = keep_power_log(measured, ResultFolder(folder, folder), index, recorder)
    return recorder.text, used


def test_energy_is_shown_and_the_power_log_kept(tmp_path: Path) -> None:
    write_log(tmp_path, 0, 100.5, 102.5)
    text, used = keep(make_meter(50), tmp_path, 0)
    assert "run 0: 100 J, 50 W" in text
    assert used["joules"] == pytest.approx(100)
    assert used["not_measured"] == "storage"
    log = powerlog.read(tmp_path / "power_0.csv")
    assert not log.problems
    assert log.energy_joules(100_500, 102_500) == pytest.approx(100)


def test_no_power_log_beside_runs_that_have_none(tmp_path: Path) -> None:
    write_log(tmp_path, 0, 0, 1)
    write_log(tmp_path, 1, 100.5, 102.5)
    text, used = keep(make_meter(50), tmp_path, 1)
    assert "no power log, because run 0 has none (rule T23)" in text
    assert used["joules"] == pytest.approx(100)
    assert not list(tmp_path.glob("power_*"))


def test_a_failed_sensor_is_reported(tmp_path: Path) -> None:
    write_log(tmp_path, 0, 100.5, 102.5)
    meter = make_meter(50)
    meter.failure = "OSError: gone"
    text, used = keep(meter, tmp_path, 0)
    assert "run 0: no energy: OSError: gone" in text
    assert "failed" in str(used["none"])
    assert not list(tmp_path.glob("power_*"))
