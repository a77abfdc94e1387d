"""What fails while one result is judged is an error of that result; all others are published."""

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks import CHECKS
from cepheid.compliance.checks.result import copies
from cepheid.compliance.failure import Failures, isolate
from cepheid.compliance.judge import follow, judgement, unit
from cepheid.compliance.read import manifest
from cepheid.compliance.read.log import runlog
from cepheid.leaderboard.plots import charts
from cepheid.leaderboard.rows import entry
from cepheid.rules.errors import UserError
from cepheid.tools import build_leaderboard, check_compliance, pack_submission, summarize_results
from tests.compliance import small
from tests.compliance.asserting import Patch, Printed
from tests.compliance.builder import SYSTEM, run_records, write_power, write_result

NOT_JUDGED = "S15.not_judged"


class OurBugError(Exception):
    """What no code expects."""


def fail_for_acme(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*subjects: Any, **options: Any) -> Any:
        if "acme" in repr(subjects) and "umbrella" not in repr(subjects):
            raise OurBugError("\x1b[2J never expected")
        return function(*subjects, **options)

    return wrapped


@pytest.fixture(scope="module")
def submissions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two submissions with manifests, waivers and power logs, in the working directory."""
    with small.installed(tmp_path_factory.mktemp("home") / "two") as mini:
        for name in ("acme", "umbrella"):
            root, system = Path("submissions", name), {**SYSTEM, "submitter": name}
            folder = write_result(root, mini, system=system)
            for index in range(5):
                write_power(folder, run_records(mini, index, system=system), index, {"node0": 900})
            assert pack_submission.main([str(root)]) == 0
        yield Path("submissions")


def let_rule_fail(rule: str) -> Callable[[Patch], None]:
    def patch(monkeypatch: Patch) -> None:
        check = CHECKS[rule]
        monkeypatch.setitem(CHECKS, rule, replace(check, find=fail_for_acme(check.find)))

    return patch


def let_fail(module: object, name: str) -> Callable[[Patch], None]:
    def patch(monkeypatch: Patch) -> None:
        monkeypatch.setattr(module, name, fail_for_acme(getattr(module, name)))

    return patch


IN_JUDGING = {
    "a rule for the first records": let_rule_fail("T1"),
    "a rule for whole logs": let_rule_fail("T8"),
    "a rule for results": let_rule_fail("T23"),
    "a rule for submitters": let_rule_fail("S3"),
    "a rule for manifests": let_rule_fail("S4"),
    "reading a log": let_fail(runlog, "read"),
    "reading a manifest": let_fail(manifest, "read"),
    "applying waivers": let_fail(judgement, "apply_waivers"),
    "summarizing": let_fail(unit, "summarize"),
    "tracing": let_fail(unit, "trace_runs"),
    "comparing with the reference": let_fail(unit, "compare_convergence"),
}


def read_verdicts(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {result["submitter"]: result["verdict"] for result in results}


IN_TWO_PROCESSES = ("a rule for whole logs", "a rule for submitters", "reading a log")


@pytest.mark.parametrize(
    ("place", "processes"),
    [
        *((place, 1) for place in IN_JUDGING),
        *(
            pytest.param(place, 2, marks=[] if place in IN_TWO_PROCESSES else pytest.mark.slow)
            for place in IN_JUDGING
        ),
    ],
)
def test_a_failure_is_an_error_of_its_result(
    place: str, processes: int, submissions: Path, monkeypatch: Patch, capfd: Printed
) -> None:
    if processes > 1:
        if multiprocessing.get_start_method() != "fork":
            pytest.skip("only a forked process has the bug of this test")
        monkeypatch.setattr(unit, "LOGS_FOR_PROCESSES", 1)
        monkeypatch.setattr(unit, "usable_processors", lambda: 2)
    capfd.readouterr()
    IN_JUDGING[place](monkeypatch)
    assert check_compliance.main([str(submissions), "--format", "json"]) == 1
    out, err = capfd.readouterr()
    errors = [found for found in json.loads(out)["findings"] if found["severity"] == "error"]
    assert NOT_JUDGED in {found["code"] for found in errors}
    assert all("acme" in found["path"] for found in errors)
    (finding, *_) = [found for found in errors if found["code"] == NOT_JUDGED]
    assert finding["message"] == "could not be judged"
    assert finding["got"].startswith("OurBugError in ")
    assert "report" in finding["hint"]
    assert err.count("Traceback (most recent call last)") == 1
    assert "OurBugError: \\x1b[2J never expected" in err

    assert build_leaderboard.main([str(submissions), "--output", "site"]) == 1
    shown = json.loads(Path("site/results.json").read_text())["results"]
    assert read_verdicts(shown) == {"acme": "rejected", "umbrella": "scored"}


IN_TABLES = {
    "making an entry": let_fail(entry, "read_hardware"),
    "measuring the pace": let_fail(entry, "measure_pace"),
}


@pytest.mark.parametrize("place", [*IN_TWO_PROCESSES, *IN_TABLES])
def test_a_summary_has_all_other_rows(
    place: str, submissions: Path, monkeypatch: Patch, capfd: Any
) -> None:
    (IN_JUDGING | IN_TABLES)[place](monkeypatch)
    capfd.readouterr()
    assert summarize_results.main([str(submissions), "--format", "json"]) == 1
    out, err = capfd.readouterr()
    rows = json.loads(out)
    assert read_verdicts(rows) == {"acme": "rejected", "umbrella": "scored"}
    assert next(row for row in rows if row["submitter"] == "acme")["score_minutes"] is None
    assert err.count("Traceback (most recent call last)") == 1


def test_a_failure_between_results(submissions: Path, monkeypatch: Patch, capsys: Printed) -> None:
    original = copies.find_recycled

    def find(results: Sequence[copies.TracedResult], *rest: Any) -> Any:
        if any("acme" in str(trace.path) for result in results for trace in result.traces):
            raise OurBugError
        return original(results, *rest)

    monkeypatch.setattr(judgement, "find_recycled", find)
    capsys.readouterr()
    assert check_compliance.main([str(submissions), "--format", "json"]) == 1
    every = json.loads(capsys.readouterr().out)["findings"]
    (found,) = [each for each in every if each["severity"] == "error"]
    assert (found["code"], Path(found["path"]).parts[1]) == (NOT_JUDGED, "acme")


@pytest.mark.parametrize("many", [False, True], ids=["of a result", "of a benchmark"])
def test_a_failure_of_pages(many: bool, submissions: Path, monkeypatch: Patch, capsys: Any) -> None:
    """Also where the page shows many results."""
    original = charts.plot_results

    def plot(entries: Sequence[Any], *rest: Any) -> Any:
        is_asked = (rest[-1] == "result") != many  # else the name of a division
        if is_asked and any("acme" in entry.id and entry.runs for entry in entries):
            raise OurBugError
        return original(entries, *rest)

    monkeypatch.setattr(charts, "plot_results", plot)
    assert build_leaderboard.main([str(submissions), "--output", "site"]) == 1
    shown = json.loads(Path("site/results.json").read_text())["results"]
    assert read_verdicts(shown) == {"acme": "rejected", "umbrella": "scored"}
    page = Path("site/results/acme/box/star_shape-mini-closed.html").read_text()
    assert "could not be judged" in page


def test_a_failure_while_following(submissions: Path, monkeypatch: Patch, capsys: Printed) -> None:
    let_rule_fail("T8")(monkeypatch)
    monkeypatch.setattr(follow, "QUIET_SECONDS", 0.0)
    log = submissions / "acme/results/box/star_shape-mini-closed/result_0.txt"
    capsys.readouterr()
    assert check_compliance.main([str(log), "--follow"]) == 1
    out, err = capsys.readouterr()
    assert out.count(NOT_JUDGED) == 1
    assert err.count("Traceback (most recent call last)") == 1


def test_what_fails_is_not_packed(submissions: Path, monkeypatch: Patch, capsys: Printed) -> None:
    before = (submissions / "acme/manifest.json").read_bytes()
    for patch in (let_rule_fail("T8"), let_fail(pack_submission, "list_digests")):
        with monkeypatch.context() as patched:
            patch(patched)
            assert pack_submission.main([str(submissions / "acme")]) == 1
    assert capsys.readouterr().out.count(f"{NOT_JUDGED} could not be judged") >= 2
    assert (submissions / "acme/manifest.json").read_bytes() == before


@pytest.mark.parametrize("error", [UserError("wrong use"), MemoryError(), OSError(28, "full")])
def test_an_error_that_concerns_no_result_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)), Failures().caught(Path("x")):
        raise error


def double(items: Sequence[int]) -> Iterator[int]:
    bad = [item for item in items if item % 10 == 3]
    if bad or (7 in items and 8 in items):
        raise OurBugError(bad)
    return iter([2 * item for item in items])


def test_isolating_strips_items_that_fail_alone_and_one_of_a_pair() -> None:
    made, items = isolate([1, 3, 7, 13, 8, 9], double, lambda item, error: 0)
    assert items == [1, 0, 7, 0, 0, 9]
    assert list(made) == [2, 0, 14, 0, 0, 18]


def fail(items: Sequence[int]) -> Iterator[int]:
    raise OurBugError


def test_isolating_raises_an_error_that_no_item_causes() -> None:
    """Without any item, whatever the items are, and where stripping does not help."""
    for items, function in (([], fail), ([1, 2], fail), ([1, 3], double)):
        with pytest.raises(OurBugError):
            isolate(items, function, lambda item, error: item)
