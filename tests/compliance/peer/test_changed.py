"""The table of the peer: its changes are those of the catalogues, and each changes something.

The peer itself is not asked here: it takes minutes, and executes code.
"""

from pathlib import Path

import pytest

from cepheid.tools.peer.__main__ import read_table
from cepheid.tools.peer.changed import CHANGES, Change, lay_out, locate_log, read_lines
from tests.checkout import PUBLISHED_LOGS, needs_published_logs
from tests.compliance.checks import test_catalogue, test_submission_catalogue

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
    for change in CHANGES:
        assert f"| {change.name} | {change.rule} |" in table, "run changed --write"


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
