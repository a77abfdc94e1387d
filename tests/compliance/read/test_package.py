"""Folders: what each is, decided by what lies in it; what is read and refused (S1, S2, S5)."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.read import folders, package
from cepheid.rules import definition, rounds
from cepheid.rules.errors import UserError
from cepheid.rules.systems import RESERVED, explain_name
from cepheid.tools import (
    check_compliance,
    describe_system,
    new_submission,
    pack_submission,
    run_benchmark,
)
from tests import assert_refused
from tests.compliance.asserting import Patch
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
    for name in ("checkpoints", "leaderboard"):
        (folder.parents[2] / name).mkdir()
        (folder / name).mkdir()
    found = find_all(folder.parents[2])
    assert [(finding.code, finding.severity) for finding in found] == [
        ("S1.unfinished", "note"),
        ("S1.interrupted", "note"),
        ("T16.too_few", "note"),
        ("T15.excused", "warning"),
    ]
    assert "result_4.txt.partial" in found[0].message


def test_an_empty_submission_and_a_result_without_a_log(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "submissions" / "acme" / "results").mkdir(parents=True)
    (found,) = find_all(tmp_path / "submissions")
    assert (found.code, found.message) == ("S1.no_result", "the submission holds no result")
    (folder.parent / "galaxy_bnn-mini-closed").mkdir()
    (found,) = find_all(folder.parents[2])
    assert (found.code, found.severity) == ("S1.no_log", "note")


def test_a_system_name_with_other_characters(folder: Path) -> None:
    folder.parent.rename(folder.parent.with_name("my box"))
    assert "S1.system_name" in {finding.code for finding in find_all(folder.parents[2])}


def test_before_the_first_submission(tmp_path: Path) -> None:
    folder = tmp_path / "submissions"
    folder.mkdir()
    (folder / "README.md").write_text("how to submit")
    assert package.read(folder, may_be_empty=True).logs == 0
    assert_refused("no run logs here", package.read, folder)
    (folder / "result_1.log").write_text("")
    assert_refused("rename it", package.read, folder, may_be_empty=True)


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


def test_a_folder_without_logs_says_what_to_do_also_in_a_checkout(tmp_path: Path) -> None:
    assert_refused("there is no such file or folder", package.read, tmp_path / "nowhere")
    assert_refused("too long", package.read, Path("x" * 5000))
    assert_refused("no run logs here; give a log", package.read, tmp_path)
    (tmp_path / "result_1.log").write_text("")
    assert_refused(r"result_1.log; rename it", package.read, tmp_path)
    folder = tmp_path / "results" / "box" / NAME
    folder.mkdir(parents=True)
    (folder / "result_0.txt.partial").write_text("")
    assert_refused("no run has ended yet", package.read, tmp_path)
    checkout = tmp_path / "checkout"
    write_result(checkout / "results" / "first", MINI)
    for name in ("README.md", "setup.cfg", "tools"):
        (checkout / name).write_text("")
    assert_refused("no run logs here; give a log", package.read, checkout)
    assert package.read(checkout / "results").logs == MINI.runs.required


def write_submitter(folder: Path, name: str, system: str = "box") -> Path:
    """A compliant submission, with the name of its folder in logs and description."""
    write_result(folder / name, MINI, system={**SYSTEM, "submitter": name, "system": system})
    return folder / name


def find_errors(path: Path) -> list[tuple[str, str]]:
    found: tuple[Finding, ...] = judge_folder(path).findings
    return [(finding.code, finding.path.name) for finding in found if finding.is_error]


@pytest.mark.parametrize("system", ["box", "2x-amd-epyc", "galaxy_shape-mini-closed"])
@pytest.mark.parametrize("name", ["systems", "results", "benchmarks", "submissions"])
@pytest.mark.parametrize("around", ["submissions", "round"])
def test_a_submitter_is_called_results(around: str, name: str, system: str, tmp_path: Path) -> None:
    """Before, `cepheid check` said "pass: 0 logs", and the site lost all results."""
    write_submitter(tmp_path / around, "umbrella")
    write_submitter(tmp_path / around, name, system)
    read = package.read(tmp_path / around)
    assert sorted(who.path.name for who in read.submitters) == sorted(["umbrella", name])
    assert read.logs == 2 * MINI.runs.required
    reported = {
        "submissions": [("S1.submitter_name", name)],
        "round": [("S2.submitter_name", f"{system}.json")],
    }
    assert find_errors(tmp_path / around) == reported[around]


@pytest.mark.parametrize("name", ["systems", "results", "result_0.txt", "result_a.txt", "notes"])
def test_a_stray_file_among_submissions(name: str, tmp_path: Path) -> None:
    root = write_submitter(tmp_path / "submissions", "acme")
    (root.parent / name).write_text("stray")
    (root.parent / "README.md").write_text("how to submit")
    (root.parent / ".gitkeep").write_text("")
    assert package.read(root.parent).logs == MINI.runs.required
    assert find_errors(root.parent) == [("S1.stray", name)]


def test_two_submitters_whose_names_differ_only_in_case(tmp_path: Path) -> None:
    for name in ("Acme", "acme"):
        write_submitter(tmp_path / "submissions", name)
    assert ("S1.stray", "acme") in find_errors(tmp_path / "submissions")


def test_a_stray_link_among_submissions(tmp_path: Path) -> None:
    root = write_submitter(tmp_path / "submissions", "acme")
    (root.parent / "umbrella").symlink_to(root)
    assert find_errors(root.parent) == [("S1.stray", "umbrella")]
    judged = judge_folder(root.parent)
    assert [result.findings for result in judged.results if result.folder.runs] != []


@pytest.mark.parametrize("name", ["systems", "results"])
def test_a_part_without_its_submitter_among_submissions(name: str, tmp_path: Path) -> None:
    root = write_submitter(tmp_path / "submissions", "acme")
    shutil.copytree(root / name, root.parent / name)
    codes = {code for code, where in find_errors(root.parent) if where == name}
    assert codes == {"S1.submitter_name", "S1.no_result"}


def test_a_folder_with_two_readings_is_refused(tmp_path: Path) -> None:
    """Each reading would pass over logs; the message names both, and the fix."""
    write_submitter(tmp_path / "round", "acme")
    write_result(tmp_path / "round", MINI)
    says = r"the folder of one submitter.*a folder of submitters'"
    with pytest.raises(UserError, match=says) as error:
        package.read(tmp_path / "round")
    parts = ("systems/box.json", "acme", "fix: move one of them elsewhere")
    assert all(part in str(error.value) for part in parts)


@pytest.mark.parametrize("has_log", [True, False], ids=["a log", "a submitter deeper"])
def test_what_lies_beside_submitters_is_not_passed_over(has_log: bool, tmp_path: Path) -> None:
    root = write_submitter(tmp_path / "round", "acme")
    if has_log:
        shutil.copy(root / "results/box/galaxy_shape-mini-closed/result_0.txt", root.parent)
        says = r"the folder of one result, because it holds result_0\.txt"
    else:
        write_submitter(root.parent / "late", "umbrella")
        says = "lies deeper than the other submitters' folders"
    assert_refused(says, package.read, root.parent)


def test_a_submitter_of_mlperf_may_be_called_results(tmp_path: Path) -> None:
    for name in ("acme", "results", "umbrella"):
        write_submitter(tmp_path / "round", name)
    read = package.read(tmp_path / "round", "mlperf")
    assert {who.path.name for who in read.submitters} >= {"acme", "umbrella"}
    assert read.logs == 3 * MINI.runs.required


def test_a_manifest_makes_a_submitters_folder(tmp_path: Path) -> None:
    root = write_submitter(tmp_path, "acme")
    write_submitter(root, "inner")
    (root / "manifest.json").write_text(json.dumps({}))
    assert [who.path for who in package.read(root).submitters] == [root]


def test_an_output_folder_may_look_like_the_place_of_a_result(tmp_path: Path) -> None:
    write_result(tmp_path / "results" / "2026" / "first-try-box", MINI)
    assert package.read(tmp_path / "results" / "2026" / "first-try-box").logs == MINI.runs.required


@pytest.mark.parametrize("layout", ["v1.0", "mlperf-training-4.0"])
def test_a_folder_without_logs_does_not_pass(layout: str, tmp_path: Path) -> None:
    (tmp_path / "submissions").mkdir()
    with pytest.raises(UserError, match="no run logs here"):
        check_compliance.main([str(tmp_path / "submissions"), "--round", layout])


def test_a_round_without_rules_for_folders_passes_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "submissions" / "acme" / "results" / "box" / "x-y-z").mkdir(parents=True)
    ours = rounds.load("v1.0")
    without = {name: rule for name, rule in ours.rules.items() if name[0] == "T"}
    monkeypatch.setattr(rounds, "load", lambda *name: replace(ours, rules=without))
    assert_refused("nothing passes", check_compliance.main, [str(tmp_path / "submissions")])
    assert "pass" not in capsys.readouterr().out


def test_names_that_are_refused() -> None:
    refused = [
        "", " ", "a b", "-x", "Systems", "con", "NUL.1", "a.", "box.json", "result_0", "x" * 65,
    ]  # fmt: skip
    assert all(map(explain_name, [*refused, *RESERVED]))
    assert not any(map(explain_name, ["acme", "2x-amd-epyc", "results-first", "local", "systems2"]))


def test_every_command_that_takes_a_name_refuses_a_reserved_one(tmp_path: Path) -> None:
    root = write_submitter(tmp_path / "submissions", "results")
    described = tmp_path / "systems.json"
    described.write_text(json.dumps({**SYSTEM, "system": "Results"}))
    run = ["galaxy_shape", "--scale", "mini", "--output", str(tmp_path / "out")]
    for command, arguments in [
        (pack_submission.main, [str(root)]),
        (new_submission.main, ["benchmarks", "--benchmark", "galaxy_shape"]),
        (describe_system.main, ["--submitter", "docs"]),
        (describe_system.main, ["--output", str(tmp_path / "systems.json")]),
        (run_benchmark.main, [*run, "--submitter", "systems"]),
        (run_benchmark.main, [*run, "--system", str(described)]),
    ]:
        assert_refused(r"cannot be the name of a .*reserved", command, arguments)
    assert not (root / "manifest.json").exists()
