"""`cepheid check` as its user meets it."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from cepheid.tools import check_compliance
from tests.compliance import small
from tests.compliance.asserting import Patch, Printed, assert_golden, assert_says, call_tool
from tests.compliance.builder import put, run_records, write_log, write_result
from tests.compliance.mixed import write_mixed


def test_a_compliant_result_passes_and_nothing_is_left_beside_it(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    before = sorted(Path("out").rglob("*"))
    assert call_tool(check_compliance.main, ["out"]) == "pass: 5 logs, 0 errors\n"
    assert sorted(Path("out").rglob("*")) == before
    line = ["out", "--format", "json", "--output", "found.json"]
    assert call_tool(check_compliance.main, line) == ""
    assert json.loads(Path("found.json").read_text()) == {
        "round": "v1.0", "judge": "cepheid, Cepheid round 1.0", "verdict": "pass", "logs": 5,
        "findings": [],
    }  # fmt: skip


def test_a_warning_is_told(star_shape: Definition, monkeypatch: Patch) -> None:
    write_result(Path("out"), star_shape, runs=1)
    small.install(Path("known data").absolute(), monkeypatch, data_digest="d" * 64)
    printed = call_tool(check_compliance.main, ["out"])
    assert "T10.data warning: the data are not those of the reference" in printed
    assert "fix: `cepheid data star_shape --scale mini --verify`" in printed
    assert printed.endswith("pass: 1 log, 0 errors, 1 warning, 1 note\n")


@pytest.mark.parametrize(
    ("how", "golden"), [("text", "check.txt"), ("json", "check.json"), ("github", "check.github")]
)
def test_golden(how: str, golden: str, star_shape: Definition) -> None:
    write_mixed(Path("out"), star_shape)
    assert_golden(call_tool(check_compliance.main, ["out", "--format", how], 1), golden)


def test_golden_sarif(star_shape: Definition) -> None:
    """The results; what is said of the rules changes with the rule books."""
    write_mixed(Path("out"), star_shape)
    (run,) = json.loads(call_tool(check_compliance.main, ["out", "--format", "sarif"], 1))["runs"]
    for result in run["results"]:
        del result["ruleIndex"]
    assert_golden(json.dumps(run["results"], indent=2) + "\n", "check.sarif.json")


def test_following_a_whole_log_is_checking_it(star_shape: Definition) -> None:
    records = put(run_records(star_shape), "opt_name", value="sgd")
    log = write_log(Path("result_0.txt"), records)
    checked = call_tool(check_compliance.main, [str(log)], 1)
    assert call_tool(check_compliance.main, [str(log), "--follow"], 1) == checked


def test_help_teaches_with_examples(capsys: Printed) -> None:
    with pytest.raises(SystemExit):
        check_compliance.main(["--help"])
    printed = capsys.readouterr().out
    assert_says(printed, "examples:", "exit codes:")


def test_as_a_program(tmp_path: Path) -> None:
    """The exit codes of the process, and no traceback for a user's mistake."""
    command = [sys.executable, "-m", "cepheid.tools.check_compliance"]
    missing = subprocess.run(
        [*command, str(tmp_path / "no")], cwd=ROOT, capture_output=True, text=True
    )
    assert missing.returncode == 2
    assert missing.stderr.count("\n") == 1
    (tmp_path / "result_0.txt").write_bytes(b":::MLLOG {\x1b[31m\n")
    broken = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, capture_output=True,
        env={"PATH": "", "LC_ALL": "C", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert broken.returncode == 1
    assert b"\x1b" not in broken.stdout
    assert b"fail: 1 log, 2 errors" in broken.stdout  # colours, and a record that is cut short


def test_as_a_file_of_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    """From any folder, with nothing in the environment: what a vendor's CI calls."""
    log = write_log(tmp_path / "result_0.txt", run_records(definition.load("galaxy_shape", "mini")))
    (tmp_path / "rules.py").write_text("raise SystemExit('not ours')")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "check_compliance.py"), str(log)],
        cwd=tmp_path, capture_output=True, text=True, env={},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "pass: 1 log, 0 errors\n", "")


def test_following_a_run_in_progress(tmp_path: Path) -> None:
    """As a program: a finding is printed while the log is still being written."""
    records = run_records(definition.load("galaxy_shape", "mini"))
    records = put(records, "opt_name", value="sgd")
    log, partial = tmp_path / "result_0.txt", tmp_path / "result_0.txt.partial"
    write_log(partial, records[:-10])
    command = [sys.executable, "-m", "cepheid.tools.check_compliance", "--follow", str(log)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as following:
        assert following.stdout is not None
        first = following.stdout.readline()
        assert_says(first, "T12.not_allowed opt_name must be adam", ".partial:")
        write_log(partial, records)
        partial.rename(log)
        rest = following.stdout.read()
        assert following.wait(timeout=60) == 1
    assert rest.endswith("fail: 1 log, 1 error\n")


@pytest.mark.parametrize(("waived", "holds"), [("result_0.txt", True), ("result_1.txt", False)])
def test_following_knows_a_log_by_the_name_it_will_have(
    waived: str, holds: bool, star_shape: Definition, capsys: Printed,
    monkeypatch: Patch,
) -> None:  # fmt: skip
    """A waiver names the log as it will be called; one of another log does not hold."""
    result = write_result(Path("submissions/acme"), star_shape)
    (result / "result_0.txt").unlink()
    wrong = put(run_records(star_shape), "opt_name", value="sgd")
    write_log(result / "result_0.txt.partial", wrong[:-10])
    place = (result / waived).relative_to("submissions")
    waiver = f"rule: T12, path: {place}, reason: tried once, who: Jane Doe, until: 9999-12-31"
    Path("submissions/decisions.yaml").write_text(f"waivers: [{{{waiver}}}]\n")
    with monkeypatch.context() as patch:  # Ctrl-C as soon as nothing is new
        patch.setattr(threading.Event, "wait", lambda _, seconds: bool(seconds))
        check_compliance.main([str(result / "result_0.txt"), "--follow"])
    printed = capsys.readouterr().out
    (told,) = (line for line in printed.splitlines() if "opt_name must be" in line)
    assert "result_0.txt.partial:" in told
    assert ("waived by Jane Doe" in told) is holds
