"""Folders: what is read, what is refused, and rules S1, S2 and S5."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.read import folders, package
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.compliance.asserting import Patch, assert_refused
from tests.compliance.builder import PNG, SYSTEM, write_result
from tests.compliance.judging import judge_folder

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
NAME = "galaxy_shape-mini-closed"


def find_all(path: Path) -> list[Finding]:
    """All but that there is no manifest: ``tests/tools/test_pack_submission.py`` is about that."""
    found = judge_folder(path).findings
    return [finding for finding in found if finding.rule != "S4"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_result(tmp_path / "out", MINI)


def test_every_entrance_leads_to_the_same_result(folder: Path, monkeypatch: Patch) -> None:
    out = folder.parents[2]
    for path in (folder, folder.parent, folder.parent.parent, out, out.parent):
        read = package.read(path)
        assert read.logs == MINI.runs.required, path
        assert find_all(path) == [], path
    monkeypatch.chdir(folder)
    assert find_all(Path(".")) == []
    (out.parent / "latest").symlink_to(out)  # the given path may be a link
    assert find_all(out.parent / "latest") == []
    read = package.read(Path("result_1.txt"))
    assert read.is_single_log
    assert read.submitters[0].results[0].runs[0] == Path("result_1.txt")


def test_paths_are_shown_as_they_were_given(folder: Path, monkeypatch: Patch) -> None:
    (folder / "result_4.txt").unlink()
    monkeypatch.chdir(folder.parents[3])
    (note,) = find_all(Path("out"))
    assert note.path == Path("out/results/box") / NAME


def test_submitters_are_found_under_submissions(tmp_path: Path) -> None:
    for name in ("acme", "umbrella"):
        write_result(tmp_path / "submissions" / name, MINI, system={**SYSTEM, "submitter": name})
    (tmp_path / "submissions" / "README.md").write_text("how to submit")
    read = package.read(tmp_path / "submissions")
    submitters = [(who.name, who.in_submission) for who in read.submitters]
    assert submitters == [("acme", True), ("umbrella", True)]
    assert find_all(tmp_path / "submissions") == []


def test_work_in_progress_is_a_note(folder: Path) -> None:
    (folder / "result_4.txt").rename(folder / "result_4.txt.partial")
    (folder / "interrupted_result_4_0.txt").write_text(':::MLLOG {"half a log')
    (folder / "configuration.json").write_text("{}")
    (folder / "report_0.json").write_text("{}")
    (folder / "pictures_0.png").write_bytes(PNG)
    (folder / ".lock").write_text("")
    (folder.parents[2] / "checkpoints").mkdir()
    (folder.parents[2] / "leaderboard").mkdir()
    found = find_all(folder.parents[2])
    assert [(finding.code, finding.severity) for finding in found] == [
        ("S1.unfinished", "note"),
        ("S1.interrupted", "note"),
        ("T16.too_few", "note"),
        ("T15.excused", "warning"),
    ]
    assert "result_4.txt.partial" in found[0].message


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("galaxy_shape-mnii-closed", "S1.unknown_name", 'did you mean "mini"'),
        ("galaxy_shape", "S1.result_name", "does not give benchmark"),
    ],
)
def test_a_wrong_folder_name(name: str, code: str, says: str, folder: Path) -> None:
    folder.rename(folder.with_name(name))
    about = [finding for finding in find_all(folder.parents[2]) if finding.rule == "S1"]
    assert [finding.code for finding in about] == [code]
    assert says in about[0].text()


def test_a_system_name_with_other_characters(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("my box"))
    assert "S1.system_name" in {finding.code for finding in find_all(folder.parents[2])}


Change = Callable[[dict[str, object]], object]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (lambda d: d.update(nodes=0), "S2.value", "minimum: 1"),
        (lambda d: d.pop("processor"), "S2.missing_field", "lacks processor"),
        (lambda d: d.update(system="boks"), "S2.system", "system is not the file's name"),
        (lambda d: d.update(software={"torch": 2}), "S2.value", "software.torch"),
    ],
)
def test_a_wrong_description(change: Change, code: str, says: str, folder: Path) -> None:
    path = folder.parents[2] / "systems" / "box.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    found = [finding for finding in find_all(folder.parents[2]) if finding.rule == "S2"]
    assert found
    assert all(finding.path == path for finding in found)
    assert any(says in finding.text() for finding in found if finding.code == code)


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 10_000, '{"a": "' + "x" * 2**20 + '"}'])
def test_a_description_that_cannot_be_read(text: str, folder: Path) -> None:
    path = folder.parents[2] / "systems" / "box.json"
    path.write_bytes(text.encode("latin-1"))
    (found,) = [finding for finding in find_all(folder.parents[2]) if finding.rule == "S2"]
    assert (found.code, found.path) == ("S2.unreadable", path)


def test_an_empty_submission_and_a_result_without_a_log(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "submissions" / "acme" / "results").mkdir(parents=True)
    (found,) = find_all(tmp_path / "submissions")
    assert (found.code, found.message) == ("S1.no_result", "the submission holds no result")
    (folder.parent / "galaxy_bnn-mini-closed").mkdir()
    (found,) = find_all(folder.parents[2])
    assert (found.code, found.severity) == ("S1.no_log", "note")


def test_before_the_first_submission(tmp_path: Path) -> None:
    folder = tmp_path / "submissions"
    folder.mkdir()
    (folder / "README.md").write_text("how to submit")
    assert package.read(folder, may_be_empty=True).logs == 0
    assert_refused("no run logs here", package.read, folder)
    (folder / "result_1.log").write_text("")
    with pytest.raises(UserError, match="rename it"):
        package.read(folder, may_be_empty=True)


@pytest.mark.parametrize("name", ["checkpoints", "leaderboard"])
def test_folders_that_tools_leave_do_not_belong_in_a_submission(name: str, tmp_path: Path) -> None:
    root = tmp_path / "submissions" / "acme"
    folder = write_result(root, MINI)
    for place in (root / name, folder / name):
        place.mkdir()
        (found,) = find_all(tmp_path / "submissions")
        assert (found.code, found.severity, found.path) == ("S1.left_by_tools", "error", place)
        assert "remove it" in found.hint
        place.rmdir()
    (folder / name).mkdir()
    root.rename(tmp_path / "acme")
    assert find_all(tmp_path / "acme") == []


def test_links_are_refused_and_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = write_result(tmp_path / "elsewhere", MINI)
    (folder / "result_2.txt").unlink()
    (folder / "result_2.txt").symlink_to(elsewhere / "result_2.txt")
    (folder.parent / "galaxy_shape-full-closed").symlink_to(elsewhere)
    (folder.parents[2] / "systems" / "other.json").symlink_to("/etc/passwd")
    errors = [finding for finding in find_all(folder.parents[2]) if finding.is_error]
    refused = {finding.path.name for finding in errors if finding.rule == "S5"}
    assert refused == {"galaxy_shape-full-closed", "other.json", "result_2.txt"}
    assert package.read(folder.parents[2]).logs == MINI.runs.required - 1


@pytest.mark.parametrize("name", ["results", "systems"])
def test_a_folder_may_be_no_link_either(name: str, folder: Path, tmp_path: Path) -> None:
    out = folder.parents[2]
    (out / name).rename(tmp_path / "elsewhere")
    (out / name).symlink_to(tmp_path / "elsewhere")
    assert "S5" in {finding.rule for finding in find_all(out)}
    read = package.read(out)
    assert read.logs == (0 if name == "results" else MINI.runs.required)
    assert not (name == "systems" and read.submitters[0].systems)


def test_pipes_are_refused_and_do_not_block(folder: Path) -> None:
    os.mkfifo(folder / "result_5.txt")
    errors = [finding for finding in find_all(folder.parents[2]) if finding.is_error]
    assert [finding.rule for finding in errors] == ["S5"]


def test_folders_are_bounded(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(folders, "ENTRIES_MAX", 3)
    assert "S5" in {finding.rule for finding in find_all(folder)}
    monkeypatch.undo()
    monkeypatch.setattr(folders.Reader, "logs_max", 2)
    assert package.read(folder).logs == 2
    assert "S5" in {finding.rule for finding in find_all(folder)}


def test_other_results_are_not_rejected_with_one(tmp_path: Path) -> None:
    good = write_result(tmp_path, MINI)
    bad = write_result(tmp_path, MINI, system={**SYSTEM, "system": "other"})
    (tmp_path / "systems" / "other.json").write_text("{")
    (bad / "result_9").mkdir()
    judged = judge_folder(tmp_path)
    of = {result.folder.path: result.findings for result in judged.results}
    assert of[good] == ()
    assert {finding.rule for finding in of[bad]} == {"S1", "S2"}


def test_a_folder_without_logs_says_what_to_do(tmp_path: Path) -> None:
    assert_refused("there is no such file or folder", package.read, tmp_path / "nowhere")
    assert_refused("too long", package.read, Path("x" * 5000))
    assert_refused("no run logs here; give a log", package.read, tmp_path)
    (tmp_path / "result_1.log").write_text("")
    assert_refused(r"result_1.log; rename it", package.read, tmp_path)


def test_a_checkout_without_logs_is_refused(tmp_path: Path) -> None:
    for name in ("README.md", "setup.cfg", "tools"):
        (tmp_path / name).write_text("")
    assert_refused("no run logs here; give a log", package.read, tmp_path)
    write_result(tmp_path / "results" / "first", MINI)
    assert_refused("no run logs here; give a log", package.read, tmp_path)
    assert package.read(tmp_path / "results").logs == MINI.runs.required


def test_a_run_in_progress_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "box" / NAME
    folder.mkdir(parents=True)
    (folder / "result_0.txt.partial").write_text("")
    assert_refused("no run has ended yet", package.read, tmp_path)
