"""The tables of compliance/README.md beside the peer's verdicts, and how they are made.

The peer itself is not asked here: it takes minutes, and executes code."""

from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.rules.errors import UserError
from cepheid.tools.peer.__main__ import (
    Compared,
    group_alike,
    make_tables,
    read_table,
    replace_table,
)
from cepheid.tools.peer.changed import CHANGES, Change, lay_out, locate_log, read_lines
from tests.checkout import PUBLISHED_LOGS, needs_published_logs
from tests.compliance.checks import test_catalogue, test_submission_catalogue
from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import change, resnet_40
from tests.compliance.test_published import read_expected

LOGS = (*test_catalogue.CASES, *test_catalogue.WARNED)
CASES = [
    *((case.name, case.rule) for case in LOGS),
    *((case.name, case.rule) for case in test_submission_catalogue.CASES),
]


def test_names_of_the_catalogues_are_unique() -> None:
    assert len(dict(CASES)) == len(CASES)


def test_every_change_has_the_rule_of_its_case() -> None:
    assert {(change.name, change.rule) for change in CHANGES} <= set(CASES)


def test_the_table_is_in_the_readme() -> None:
    table = read_table("changed")
    for known in CHANGES:
        assert f"| {known.name} | {known.rule} |" in table, "run changed --write"


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


BEGIN, END = "<!-- published logs: begin -->", "<!-- published logs: end -->"


@needs_published_logs
def test_the_readme_lists_every_disagreement() -> None:
    """Ours are the peer's verdicts but for crashes (test_published); the table names those."""
    disagreements = read_table("published").split("Every disagreement:")[1].split("Why logs")[0]
    named = {
        (row.split("`")[1], name)
        for row in disagreements.splitlines()
        for name in row.split(" | ")[0].split("`")[3::2]
        if "`" in row
    }
    crashed = [
        row["log"] for row in read_expected("expected_runs.csv") if row[list(row)[-1]] == "CRASH"
    ]
    assert named == {(str(Path(log).parent), Path(log).name) for log in crashed}


def test_logs_with_the_same_verdict_share_a_row() -> None:
    missing = Finding("M1.missing", "error", Path("x"), None, "epoch_stop is missing")
    again = Finding("M1.missing", "error", Path("x"), None, "epoch_start is missing")
    other = Finding(
        "T17.not_converged", "error", Path("x"), 3, "the run did not converge: the log ends"
    )
    pairs = [
        Compared("r", Path(f"a/result_{k}.txt"), "CRASH", "KeyError", (missing, again, other))
        for k in range(2)
    ]
    ((logs, pair),) = group_alike(pairs)
    assert logs == "`r/a`: `result_0.txt`, `result_1.txt`"
    assert pair.breaches == "M1 is missing: epoch_start, epoch_stop; T17 the run did not converge"


def test_logs_are_compared_and_written_between_the_marks(tmp_path: Path) -> None:
    pytest.importorskip("mlperf_logging")
    tree = tmp_path / "logs" / "mlperf-training-4.0"
    tree.mkdir(parents=True)
    submit(tree, [resnet_40(), change(resnet_40(1), "lars_epsilon", value=1)])
    file = tmp_path / "README.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    replace_table("published", make_tables(tmp_path / "logs"), file)
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n| round")
    assert text.endswith(f"|\n{END}\nafter\n")
    assert "| `mlperf-training-4.0` | 2 | 1 | 1 | 0 |" in text
    assert "`result_1.txt` | M1 is not as the round requires: lars_epsilon |" in text


def test_a_file_without_marks_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("nothing", encoding="utf-8")
    with pytest.raises(UserError, match="to write between"):
        replace_table("published", "section", file)


def test_a_folder_without_rounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder of a round here"):
        make_tables(tmp_path)
