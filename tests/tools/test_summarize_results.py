"""`cepheid summary` as its user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from cepheid.tools import summarize_results
from tests.compliance.asserting import assert_golden, assert_refused
from tests.compliance.builder import SYSTEM, write_result

Printed = pytest.CaptureFixture[str]


def test_a_first_run(star_shape: Definition, capsys: Printed) -> None:
    write_result(Path("out"), star_shape, runs=1)
    assert summarize_results.main(["out"]) == 0
    assert_golden(capsys.readouterr().out, "summary_first_run.txt")


def test_a_table_has_the_width_of_the_terminal_and_80_columns_elsewhere(
    star_shape: Definition, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        system = {**SYSTEM, "system": f"a-system-with-a-name-of-its-own-{number}-of-2"}
        write_result(Path("out"), star_shape, system=system)
    summarize_results.main(["out"])
    assert "converged" in capsys.readouterr().out
    monkeypatch.delenv("COLUMNS")
    summarize_results.main(["out"])
    piped = capsys.readouterr().out
    assert max(map(len, piped.splitlines())) <= 80
    assert "converged" not in piped
    assert "acme/a-system-with-a-name-of-its-own-2-of-2" in piped
    summarize_results.main(["out", "--output", "table.txt"])
    assert Path("table.txt").read_text() == piped


def test_before_the_first_submission(capsys: Printed, tmp_path: Path) -> None:
    (tmp_path / "submissions").mkdir()
    assert_refused("no run logs here", summarize_results.main, [str(tmp_path / "submissions")])
    (tmp_path / "submissions" / "acme").mkdir()
    assert_refused("no result was found", summarize_results.main, [str(tmp_path / "submissions")])
    assert capsys.readouterr().out == ""


def test_several_paths_are_one_table(star_shape: Definition, capsys: Printed) -> None:
    write_result(Path("a"), star_shape)
    write_result(Path("b"), star_shape, block_ms=10_000, system={**SYSTEM, "system": "bus"})
    assert summarize_results.main(["a", "b", "--format", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["score_minutes"] < second["score_minutes"]


def test_the_file_runs_in_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "submissions").mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "summarize_results.py"), "submissions"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cepheid: submissions: no run logs here")
