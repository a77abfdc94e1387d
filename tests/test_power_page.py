"""docs/power.md: its script makes a power log that the check accepts of a meter's readings."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cepheid.compliance.read import powerlog
from cepheid.rules import definition
from cepheid.rules.installation import ROOT
from tests.compliance.builder import Record, run_records, write_log, write_result
from tests.compliance.judging import judge_folder

GALAXY_SHAPE = definition.load("galaxy_shape", "mini")


def slew(records: list[Record]) -> list[Record]:
    """The wall clock gains half a second in a thousand: a clock that is being slewed."""
    start = records[0]["time_ms"]
    for record in records:
        record["time_ms"] += int((record["time_ms"] - start) * 5e-4)
    return records


def test_the_script_converts_the_readings_of_a_meter(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "power.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "convert.py").write_text(script)
    folder = write_result(tmp_path / "acme", GALAXY_SHAPE, blocks=lambda index: 9)
    records = slew(run_records(GALAXY_SHAPE, 0, blocks=9))
    log = write_log(folder / "result_0.txt", records)
    walls = range(records[0]["time_ms"] - 100_000, records[-1]["time_ms"] + 100_000, 500)
    rows = [f"{wall / 1000},{300 + n % 7},{5 + n % 3}" for n, wall in enumerate(walls)]
    (tmp_path / "meter.csv").write_text("\n".join(["seconds,plug0,plug1", *rows]) + "\n")
    line = [sys.executable, "convert.py", "meter.csv", str(log), "network switches"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "power_0.csv").write_text(done.stdout)
    found = judge_folder(tmp_path / "acme").findings
    about_power = [finding.code for finding in found if finding.rule == "T23"]
    assert about_power == ["T23.missing"]  # of the other runs
    read = powerlog.read(folder / "power_0.csv")
    assert read.not_measured == "network switches"
    marks = {record["key"]: record["metadata"]["monotonic_ms"] for record in records}
    seconds = (marks["run_stop"] - marks["run_start"]) / 1000
    joules = read.energy_joules(marks["run_start"], marks["run_stop"])
    assert joules == pytest.approx(309 * seconds, rel=0.01)


def test_the_example_of_several_nodes_is_a_power_log(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "power.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^(# not measured: node.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "power_0.csv").write_text(example)
    assert not powerlog.read(tmp_path / "power_0.csv").problems
    assert json.dumps(powerlog.read(tmp_path / "power_0.csv").not_measured).startswith('"node 3')
