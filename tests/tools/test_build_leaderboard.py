"""`cepheid leaderboard` and `cepheid summary` as their user meets them."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools import build_leaderboard, diff_leaderboards, summarize_results
from tests import assert_refused
from tests.compliance.asserting import assert_golden, call_tool
from tests.compliance.builder import SYSTEM, write_result
from tests.compliance.mixed import write_mixed
from tests.leaderboard.test_site import Page

Printed = pytest.CaptureFixture[str]


def test_the_page_and_its_rows(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    assert call_tool(build_leaderboard.main, ["out"]) == "out/leaderboard/index.html\n"
    folder = Path("out/leaderboard")
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == set((folder / "files.txt").read_text().splitlines())
    assert "star_shape" in (folder / "index.html").read_text()
    assert json.loads((folder / "results.json").read_text())["results"][0]["verdict"] == "scored"


def test_a_page_is_built_again_in_its_place(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape, runs=1)
    build_leaderboard.main(["out"])
    write_result(Path("out"), star_shape, runs=2)
    assert build_leaderboard.main(["out"]) == 0
    assert "provisional: 2 of 5 runs" in Path("out/leaderboard/index.html").read_text()
    assert {path.name for path in Path("out").iterdir()} == {"results", "systems", "leaderboard"}


@pytest.mark.parametrize("foreign", ["notes.txt", "results/mine.txt", "benchmarks/link"])
def test_a_file_within_the_site_is_left_alone(foreign: str, star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    build_leaderboard.main(["out", "--output", "site"])
    path = Path("site", foreign)
    if path.name == "link":
        path.symlink_to("/nowhere")
    else:
        path.write_text("mine")
    assert_refused(f"holds {foreign}", build_leaderboard.main, ["out", "--output", "site"])
    assert path.is_symlink() or path.read_text() == "mine"


@pytest.mark.parametrize(
    ("there", "output", "says"),
    [
        ("site/notes.txt", "site", "choose another --output"),
        ("site/index.html", "site", "choose another --output"),
        ("site/leaderboard.csv", "site", "choose another --output"),
        ("site", "site", "not a folder"),
        ("site", "site/inner", "cannot be written"),
    ],
)
def test_foreign_files_stay(there: str, output: str, says: str, star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    Path(there).parent.mkdir(exist_ok=True)
    Path(there).write_text("mine")
    assert_refused(says, build_leaderboard.main, ["out", "--output", output])
    assert Path(there).read_text() == "mine"


def test_links_and_unknown_names_are_refused_and_folders_filled(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    Path("site").symlink_to("nowhere")
    assert_refused("not a folder", build_leaderboard.main, ["out", "--output", "site"])
    Path("site").unlink()
    Path("site").mkdir()
    assert build_leaderboard.main(["out", "--output", "site"]) == 0
    assert_refused(r'no round "v1\.1"', build_leaderboard.main, ["out", "--round", "v1.1"])
    with pytest.raises(UserError, match=r"no such system with a score \(there are: acme/box\)"):
        build_leaderboard.main(["out", "--reference", "acme/bax"])
    assert build_leaderboard.main(["out", "--reference", "acme/box"]) == 0
    log = str(folder / "result_0.txt")
    assert_refused("choose the folder to write", build_leaderboard.main, [log])


def test_what_changed_since_the_last_build(star_shape: Definition, capsys: Printed) -> None:
    write_mixed(Path("out"), star_shape)
    build_leaderboard.main(["out", "--output", "old"])
    assert diff_leaderboards.main(["old", "old/results.json"]) == 0
    write_result(Path("out"), star_shape, block_ms=15_000)
    write_result(Path("out"), star_shape, system={**SYSTEM, "system": "new"})
    shutil.rmtree("out/results/box/star_shape-mini-open")
    build_leaderboard.main(["out", "--output", "new"])
    capsys.readouterr()
    text = call_tool(diff_leaderboards.main, ["old", "new"], 1)
    assert "changed  acme/box/star_shape-mini-closed\n           faster: 1." in text
    assert re.search(r"faster: 1\.\d+ times as fast, 95% interval 1\.\d+–1\.\d+\n", text)
    assert re.search(r"score minutes: 1\.\d+ → 0\.\d+ \(-", text)
    assert re.search(r"run 0 minutes: 1\.\d+ → ", text)
    assert diff_leaderboards.main(["old", "new", "--format", "json"]) == 1
    found = {change["id"]: change["kind"] for change in json.loads(capsys.readouterr().out)}
    assert found == {
        "acme/new/star_shape-mini-closed": "added",
        "acme/box/star_shape-mini-open": "removed",
        "acme/box/star_shape-mini-closed": "changed",
    }
    assert_refused("nowhere: no such file", diff_leaderboards.main, ["old", "nowhere"])


def test_a_site_does_not_lose_results_by_mistake(star_shape: Definition, capsys: Printed) -> None:
    for name in ("acme", "umbrella"):
        write_result(Path("round", name), star_shape, system={**SYSTEM, "submitter": name})
    assert build_leaderboard.main(["round", "--output", "site"]) == 0
    before = Path("site/results.json").read_bytes()
    shutil.rmtree("round/umbrella")
    with pytest.raises(UserError, match=r"1 of the 2 results there would disappear \(umbrella/"):
        build_leaderboard.main(["round", "--output", "site"])
    assert Path("site/results.json").read_bytes() == before
    assert build_leaderboard.main(["round", "--output", "site", "--allow-removal"]) == 0
    assert len(json.loads(Path("site/results.json").read_text())["results"]) == 1


def test_a_site_without_results_is_written_only_on_purpose(star_shape: Definition) -> None:
    Path("submissions/acme/results").mkdir(parents=True)
    with pytest.raises(UserError, match="the site would have no result"):
        build_leaderboard.main(["submissions", "--output", "site"])
    shutil.rmtree("submissions/acme")
    assert_refused("no run logs here", build_leaderboard.main, ["submissions", "--output", "site"])
    assert not Path("site").exists()
    assert build_leaderboard.main(["submissions", "--output", "site", "--allow-removal"]) == 0
    assert json.loads(Path("site/results.json").read_text())["results"] == []
    text = Path("site/index.html").read_text()
    assert "no results yet" in text
    Page(text)


def test_a_first_run(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape, runs=1)
    assert_golden(call_tool(summarize_results.main, ["out"]), "summary_first_run.txt")


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


def test_several_paths_are_one_table(star_shape: Definition) -> None:
    write_result(Path("a"), star_shape)
    write_result(Path("b"), star_shape, block_ms=10_000, system={**SYSTEM, "system": "bus"})
    first, second = json.loads(call_tool(summarize_results.main, ["a", "b", "--format", "json"]))
    assert first["score_minutes"] < second["score_minutes"]


def test_the_file_runs_in_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "submissions").mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "summarize_results.py"), "submissions"],
        cwd=tmp_path, capture_output=True, text=True, env={},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("cepheid: submissions: no run logs here")
