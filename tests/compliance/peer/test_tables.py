"""Our verdicts beside the peer's over whole repositories of results, and tables of both.

The peer is not asked about the catalogues here: it takes minutes, and executes code."""

import os
from pathlib import Path

import pytest

from cepheid.rules import rounds
from cepheid.tools.peer import agreement
from cepheid.tools.peer.__main__ import CHANGED, replace_table
from cepheid.tools.peer.agreement import Compared, compare_round, compare_rounds, write_table
from cepheid.tools.peer.changed import CHANGES, Change, lay_out, locate_log, read_lines
from tests import assert_refused
from tests.checkout import PUBLISHED_LOGS, needs_published_logs
from tests.compliance.checks import test_catalogue, test_submission_catalogue
from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import change, drop, resnet_40

REPOSITORIES = agreement.find_repositories(Path(os.environ.get(agreement.VARIABLE) or "/nowhere"))
needs_repositories = pytest.mark.skipif(
    not REPOSITORIES,
    reason=f"{agreement.VARIABLE} names no folder with clones of mlcommons' results",
)
A_FEW = 20  # logs of each round; `python -m cepheid.tools.peer agreement` compares all


@needs_repositories
@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_sample_of_a_published_round(name: str) -> None:
    pytest.importorskip("mlperf_logging")
    compared = list(compare_round(name, REPOSITORIES[name], sample=A_FEW))
    assert len(compared) >= A_FEW
    assert [each for each in compared if not each.is_equal] == []


def test_logs_and_results_are_compared_and_recorded(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_logging")
    broken = change(resnet_40(1), "lars_epsilon", value=1)
    submit(tmp_path / "training_results_v4.0", [resnet_40(), broken, *map(resnet_40, (2, 3, 4))])
    compared = compare_rounds(tmp_path)
    assert [(each.kind, each.peer, each.is_equal) for each in compared] == [
        *[("log", "FAILED" if k == 1 else "SUCCESS", True) for k in range(5)],
        ("result", "pass", True),
        ("package", "SUCCESS", True),
    ]
    assert compared[1].we_say == "value lars_epsilon"
    assert compare_rounds(tmp_path) == compared  # from the record, where nothing is added
    assert "| `mlperf-training-4.0` | 5 | 4 | 1 | 0 | 1 | 0 | – |" in write_table(compared)


@pytest.mark.parametrize(
    ("wrong", "peer", "peer_says", "ours"),
    [
        ("no seed", "FAILED", "1 x Seed checker failed", "SUCCESS"),
        ("one seed", "FAILED", "1 x Seed checker failed", "FAILED"),
        ('"divison": "closed"', "CRASH", "KeyError: 'division'", "FAILED"),
    ],
)
def test_where_the_package_checkers_agree(
    wrong: str, peer: str, peer_says: str, ours: str, tmp_path: Path
) -> None:
    """Seeds are asked for since v4.1 alone; two descriptions of v0.7 have the misspelt field."""
    pytest.importorskip("mlperf_logging")
    repository, runs = tmp_path / "training_results_v4.0", list(map(resnet_40, range(5)))
    if wrong.endswith("seed"):
        runs = [change(r, "seed", value=7) if "one" in wrong else drop(r, "seed") for r in runs]
    submit(repository, runs)
    if wrong.startswith('"'):
        for path in repository.rglob("systems/*.json"):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace('"division": "closed"', wrong), encoding="utf-8")
    found = [each for each in compare_rounds(tmp_path) if each.kind == "package"]
    assert [(each.peer, each.ours) for each in found] == [(peer, ours)]
    assert peer_says in found[0].peer_says


@pytest.mark.parametrize(("version", "compares"), [("0.6", False), ("0.7", False), ("1.0", True)])
def test_seeds_are_compared_by_mlcommons_since_v10(version: str, compares: bool) -> None:
    assert ("T15" in rounds.load(f"mlperf-training-{version}").of_mlcommons) == compares


def test_the_table_shows_how_fast_both_are(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_logging")
    repository = tmp_path / "training_results_v4.0"
    submit(repository, [resnet_40(index) for index in range(5)])
    logs = agreement.draw_logs("mlperf-training-4.0", repository, number=2)
    measured = agreement.measure_round("mlperf-training-4.0", logs, turns=1)
    assert len(logs) == 2
    assert float(measured.peer) > float(measured.ours) > 0
    agreement.add_to_record(tmp_path / agreement.RECORD, [measured])
    *_, row = write_table(compare_rounds(tmp_path))
    assert row.startswith("| `mlperf-training-4.0` | 5 | 5 | 0 | 0 | 1 | 0 | ")
    assert float(row.split("|")[-2]) > 1


def test_a_comparison_that_was_stopped_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_logging")
    submit(tmp_path / "training_results_v4.0", [resnet_40(), resnet_40(1)])
    whole = compare_rounds(tmp_path)
    record = tmp_path / agreement.RECORD
    lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
    record.write_text("".join(lines[:2]), encoding="utf-8")
    assert compare_rounds(tmp_path) == whole


def test_a_crash_is_a_log_that_is_refused() -> None:
    for peer, ours, is_equal in [
        ("SUCCESS", "SUCCESS", True),
        ("SUCCESS", "FAILED", False),
        ("CRASH", "FAILED", True),
        ("CRASH", "SUCCESS", False),
        ("pass", "pass with 1.020000 instead of 1.010000", False),
    ]:
        assert Compared("mlperf-training-4.0", "log", "x", peer, ours).is_equal == is_equal


def test_what_is_missing_or_has_no_marks_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(agreement.VARIABLE, str(tmp_path))
    assert_refused(r"fix: clone them", agreement.require_repositories)
    file = tmp_path / "README.md"
    file.write_text("nothing", encoding="utf-8")
    assert_refused("to write between", replace_table, "changed", "section", file)


CASES = [
    *((case.name, case.rule) for case in test_catalogue.CASES),
    *((case.name, case.rule) for case in test_submission_catalogue.CASES),
]


def test_changes_have_a_case_of_their_own_and_a_row_in_the_page() -> None:
    assert len(dict(CASES)) == len(CASES)
    assert {(change.name, change.rule) for change in CHANGES} <= set(CASES)
    page = CHANGED.read_text(encoding="utf-8")
    for known in CHANGES:
        assert f"| {known.name} | {known.rule} |" in page, "run changed --write"


@needs_published_logs
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_changes_the_published_result(change: Change, tmp_path: Path) -> None:
    result = lay_out(tmp_path / "a" / "NVIDIA", PUBLISHED_LOGS)
    lines = read_lines(locate_log(result, 2))
    before = {path: path.stat().st_mtime_ns for path in result.parent.rglob("*")}
    if change.of_log:
        assert change.of_log(lines) != lines
    elif change.of_result:
        change.of_result(result)
        assert {path: path.lstat().st_mtime_ns for path in result.parent.rglob("*")} != before
