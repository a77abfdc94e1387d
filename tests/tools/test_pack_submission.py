"""`cepheid pack`: a manifest that binds a submission, whatever happens while it is written."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks.alike import near
from cepheid.compliance.finding import Finding
from cepheid.compliance.read import manifest
from cepheid.rules import definition
from cepheid.rules.digests import digest_code, digest_files
from cepheid.rules.errors import UserError
from cepheid.tools import pack_submission
from tests import assert_refused
from tests.compliance.builder import name_task, run_records, write_log, write_result
from tests.compliance.judging import find_all, judge_folder
from tests.full_disk import files_end_after, limit_files
from tests.processes import cepheid

MINI = definition.load("galaxy_shape", "mini")
RESULT = "results/box/galaxy_shape-mini-closed"
CODE = "benchmarks/galaxy_shape"
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compliant submission that is not packed yet; its runs may be alike."""
    monkeypatch.setattr(near, "EVALUATIONS", 99)
    root = tmp_path / "submissions" / "acme"
    write_result(root, MINI, blocks=lambda index: 11)  # with fewer T21 finds them too fast
    return root


def pack(root: Path) -> int:
    return pack_submission.main([str(root)])


def pack_and_edit(root: Path, change: Callable[[Any], object]) -> Finding:
    pack(root)
    content = json.loads((root / "manifest.json").read_text())
    change(content)
    (root / "manifest.json").write_text(json.dumps(content))
    (found,) = find_all(root)
    return found


def test_a_packed_submission_raises_nothing(root: Path, capsys: Printed) -> None:
    (before,) = find_all(root)
    assert (before.code, before.severity) == ("S4.no_manifest", "warning")
    assert pack(root) == 0
    assert "9 files, 1 result, bound together" in capsys.readouterr().out
    assert find_all(root) == []
    (bound,) = json.loads((root / "manifest.json").read_text())["results"].values()
    assert bound["code"] == digest_code(digest_files(root / CODE))
    assert bound["definition_digest"] == MINI.digest
    first = (root / "manifest.json").read_bytes()
    assert pack(root) == 0
    assert (root / "manifest.json").read_bytes() == first


def test_byte_code_and_decisions_are_not_in_a_manifest(root: Path) -> None:
    pack(root)
    (root.parent / "decisions.yaml").write_text("waivers: []\n")  # added after packing
    assert find_all(root) == []
    (root / CODE / "__pycache__").mkdir()
    (root / CODE / "__pycache__" / "train.pyc").touch()
    assert [found.code for found in find_all(root)] == ["S3.unbound"]
    assert pack(root) == 1
    shutil.rmtree(root / CODE / "__pycache__")
    (root / ".manifest.json.123.partial").write_text("left by a pack that was killed")
    assert [found.code for found in find_all(root)] == ["S5.name"]
    assert pack(root) == 0
    assert not (root / ".manifest.json.123.partial").exists()


@dataclass(frozen=True)
class Change:
    """Another content of one file (None: it is deleted), where that is found and what is said."""

    file: str
    content: str | None
    code: str
    found: str
    says: str


CHANGES = {
    "changed": Change(f"{CODE}/train.py", "faster", "S4.digest", f"{CODE}/train.py", "not the one"),
    "not listed": Change(
        f"{CODE}/more.py", "", "S4.unlisted_file", f"{CODE}/more.py", "does not list"
    ),
    "missing": Change(f"{CODE}/train.sh", None, "S4.missing_file", "manifest.json", "not there"),
    "no JSON": Change("manifest.json", "{", "S4.unreadable", "manifest.json", "not JSON"),
    "nested": Change("manifest.json", "[" * 9999, "S4.unreadable", "manifest.json", "not JSON"),
    "no manifest": Change(
        "manifest.json", '{"files": {"a": 1}}', "S4.unreadable", "manifest.json", "its schema"
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_after_packing_is_found_and_packed_again(change: Change, root: Path) -> None:
    (root / CODE / "train.sh").write_text("python train.py\n")
    pack(root)
    if change.content is None:
        (root / change.file).unlink()
    else:
        (root / change.file).write_text(change.content)
    (found,) = find_all(root)
    assert (found.code, found.is_error, found.path) == (change.code, True, root / change.found)
    assert change.says in found.message
    assert pack(root) == 0
    assert find_all(root) == []


@pytest.mark.parametrize(("code", "value"), [("S4.round", "v0.9"), ("S4.submitter", "umbrella")])
def test_a_manifest_of_another_round_or_submitter(code: str, value: str, root: Path) -> None:
    found = pack_and_edit(root, lambda content: content.update({code.removeprefix("S4."): value}))
    assert (found.code, found.is_error, found.got) == (code, True, f'"{value}"')


def test_many_files_that_differ_are_counted(root: Path) -> None:
    pack(root)
    for number in range(25):
        (root / CODE / f"more_{number}.py").touch()
    codes = [finding.code for finding in find_all(root)]
    assert sorted(codes) == ["S4.more_files", *["S4.unlisted_file"] * 20]


def test_a_manifest_that_binds_a_result_to_something_else(root: Path) -> None:
    found = pack_and_edit(root, lambda content: content["results"][RESULT].update(code="0" * 64))
    assert (found.code, found.is_error) == ("S4.results", True)
    assert RESULT in found.message


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "a\nb", "<script>", "\x1b[31m"]
)
def test_hostile_names_in_a_manifest_are_told_and_not_read(name: str, root: Path) -> None:
    found = pack_and_edit(root, lambda content: content["files"].update({name: "0" * 64}))
    assert found.code == "S4.missing_file"
    assert "not there" in found.message
    assert found.text().replace("\n    ", "").isprintable()


def log_digest(root: Path, digest: str) -> None:
    for index in range(MINI.runs.required):
        records = name_task(run_records(MINI, index, blocks=11), digest)
        write_log(root / RESULT / f"result_{index}.txt", records)


def find_codes(root: Path) -> list[tuple[str, str]]:
    found = judge_folder(root).findings
    return sorted({(each.code, each.severity) for each in found} - {("S4.no_manifest", "warning")})


def test_code_that_was_added_after_the_runs_is_noticed(root: Path) -> None:
    """By an error where the logs name the code, and otherwise by what evidence allows."""
    assert find_codes(root) == [("S4.unbound", "warning")]
    log_digest(root, digest_code(digest_files(root / CODE)))
    assert find_codes(root) == []
    (root / CODE / "run.sh").write_text("python train.py --twice-as-fast\n")
    assert find_codes(root) == [("S4.code", "error")]
    write_result(root, MINI, blocks=lambda index: 11)
    (root / CODE / "train.py").unlink()
    assert find_codes(root) == [("S4.unbound", "note")]


def test_errors_and_other_code_are_told_and_nothing_is_written(root: Path, capsys: Printed) -> None:
    log_digest(root, "0" * 64)
    assert pack(root) == 1
    printed = capsys.readouterr().out
    assert "result_0.txt:12: S4.code the log was not written by the code under" in printed
    assert "not packed" in printed
    assert not (root / "manifest.json").exists()
    (root / "LICENSE").unlink()
    assert pack(root) == 1
    assert "S6.no_licence the submission states no licence" in capsys.readouterr().out
    assert not (root / "manifest.json").exists()


@pytest.mark.parametrize(
    ("where", "says"), [("nowhere", "no such folder"), (".", "not a submission")]
)
def test_a_folder_that_is_no_submission_is_refused(where: str, says: str, tmp_path: Path) -> None:
    assert_refused(says, pack, tmp_path / where)


def test_a_full_or_locked_disk_keeps_the_manifest_from_before(root: Path) -> None:
    pack(root)
    before = (root / "manifest.json").read_bytes()
    (root / CODE / "train.py").write_text("faster\n")
    with files_end_after(100), pytest.raises(UserError, match="File too large"):
        pack(root)
    assert (root / "manifest.json").read_bytes() == before
    assert not list(root.glob(".manifest.json*"))
    assert pack(root) == 0
    done = cepheid("pack", root, prelude=partial(limit_files, 0))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot write there" in done.stderr


def test_reading_a_manifest_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with path.open("wb") as file:
        file.truncate(manifest.FILE_BYTES_MAX + 1)
    assert "larger" in manifest.read(path).problem
    path.write_text('{"round": "v1.0", "round": "v1.0"}')
    assert "more than once" in manifest.read(path).problem
