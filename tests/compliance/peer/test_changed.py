"""The table of the peer: its changes are those of the catalogues, and each changes something.

The peer itself is not asked here: it takes minutes, and executes code.
"""

from pathlib import Path

import pytest

from tests.checkout import needs_published_logs
from tests.compliance.checks import test_catalogue, test_submission_catalogue
from tests.compliance.peer import readme
from tests.compliance.peer.changed import (
    CHANGES,
    TABLE,
    Change,
    lay_out,
    log_of,
    our_rules,
    read,
)


def test_names_of_the_catalogues_are_unique() -> None:
    logs = [case.name for case in (*test_catalogue.CASES, *test_catalogue.WARNED)]
    names = [*logs, *(case.name for case in test_submission_catalogue.CASES)]
    assert sorted(names) == sorted(set(names))


def test_every_change_is_of_the_catalogues() -> None:
    assert not [change.name for change in CHANGES if change.name not in our_rules()]


def test_the_table_is_in_the_readme() -> None:
    table = readme.table(TABLE)
    rules = our_rules()
    for change in CHANGES:
        assert f"| {change.name} | {rules[change.name]} |" in table, "run changed --write"


@needs_published_logs
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_changes_the_published_result(change: Change, tmp_path: Path) -> None:
    result = lay_out(tmp_path / "NVIDIA")
    lines = read(log_of(result, 2))
    before = {path: path.stat().st_mtime_ns for path in result.parent.rglob("*")}
    if change.of_log:
        assert change.of_log(lines) != lines
    elif change.of_result:
        change.of_result(result)
        assert {path: path.lstat().st_mtime_ns for path in result.parent.rglob("*")} != before
