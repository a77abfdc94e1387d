"""Logs and code that a site takes along: complete, text whatever their names say, nothing else."""

import json
import os
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from cepheid.leaderboard.site import evidence
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools import build_leaderboard
from tests.compliance.asserting import Patch
from tests.compliance.builder import find, run_records, write_code, write_log, write_result
from tests.compliance.field import write_field
from tests.leaderboard.test_site import Page


def find_broken_links(root: Path) -> list[str]:
    """Find links of pages and of the index that do not lead to a file of the site."""
    broken = []
    for page in root.rglob("*.html"):
        for link in Page(page.read_text(encoding="utf-8")).links:
            target = unquote(link.split("#")[0])
            inside = not os.path.isabs(target) and (page.parent / target).resolve()
            if (
                target
                and not target.startswith(("https://doi.org/10.", "https://arxiv.org/abs/"))
                and not (inside and inside.is_file() and inside.is_relative_to(root.resolve()))
            ):
                broken.append(f"{page.relative_to(root)}: {link}")
    for result in json.loads((root / "results.json").read_text())["results"]:
        for name in (result["page"], *(run["log"] for run in result["run_logs"])):
            path = (root / unquote(name)).resolve()
            if not (path.is_file() and path.is_relative_to(root.resolve())):
                broken.append(f"results.json: {name}")
    return broken


def test_a_site_moves_with_its_logs_and_comes_again(star_shape: Definition, tmp_path: Path) -> None:
    """Also where the logs were written at another time and in another order."""
    write_field(Path("submissions"), star_shape)
    write_code(Path("submissions/acme"), "star_shape")
    asked = ["submissions", "--output", "site", "--logs", "copy"]
    build_leaderboard.main(asked)
    moved = tmp_path / "elsewhere" / "deep"
    moved.parent.mkdir()
    shutil.move("site", moved)
    shutil.move("submissions", "written")
    assert find_broken_links(moved) == []
    assert len(list(moved.glob("logs/*/*/*/result_*.txt"))) >= 5 * 15
    for path in sorted(Path("written").rglob("*"), reverse=True):
        if path.is_file():
            copy = Path("submissions", path.relative_to("written"))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            os.utime(copy, (0, 0))
    build_leaderboard.main(asked)
    first, second = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (moved, Path("site"))
    )
    assert first == second


def test_links_beside_the_site_break_when_it_moves(star_shape: Definition, tmp_path: Path) -> None:
    """The test above can fail: without copies, there is nothing to link to."""
    write_result(Path("out"), star_shape)
    build_leaderboard.main(["out", "--output", "site"])
    shutil.copytree("site", tmp_path / "away")
    assert len(find_broken_links(tmp_path / "away")) >= 2 * 5


def test_a_copy_is_the_log(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    build_leaderboard.main(["out", "--output", "site", "--logs", "copy"])
    copies = Path("site/logs/acme/box/star_shape-mini-closed")
    assert (copies / "result_3.txt").read_bytes() == (folder / "result_3.txt").read_bytes()
    (result,) = json.loads(Path("site/results.json").read_text())["results"]
    page = Path("site", result["page"]).read_text()
    for name in ("definition_digest", "code_digest", "first_run", "round"):
        assert f"{result[name]}" in page.split("<dl")[1].split("</dl>")[0]
    assert result["run_logs"][3]["log"] == "logs/acme/box/star_shape-mini-closed/result_3.txt"


def test_a_result_has_what_its_own_logs_say(star_shape: Definition) -> None:
    """Not the definition of today, nor what is wrong with the submitter's other benchmarks."""
    for one in (definition.load("star_images", "mini"), star_shape):
        folder = write_result(Path("submissions/acme"), one)
        write_code(Path("submissions/acme"), one.name)
    for number in range(star_shape.runs.required):
        records = run_records(star_shape, number, blocks=3)
        seed = find(records, "seed")
        seed["value"], seed["metadata"]["origin"] = number + 1, "given"
        write_log(folder / f"result_{number}.txt", records)
    build_leaderboard.main(["submissions", "--output", "site"])
    (page,) = Path("site/results").rglob("star_shape*.html")
    assert "seeds given" in Path("site/benchmarks/star_shape-mini.html").read_text()
    assert "S4.unbound" in page.read_text()
    assert "star_images" not in page.read_text().split("Findings")[1]
    for log in folder.glob("result_*.txt"):
        log.write_text(log.read_text().replace(star_shape.digest, "f" * 64))
    build_leaderboard.main(["submissions", "--output", "site"])
    assert "f" * 64 in page.read_text()
    os.chdir(folder.parent)
    assert build_leaderboard.main([folder.name, "--output", "alone"]) == 1  # of a mere result


def test_no_copy_is_a_page_or_a_program(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    write_code(Path("out"), "star_shape")
    names = ("index.html", "x.svg", "a.js", "evil.php.txt", ".htaccess", "deep/er/page.xhtml",
             "a b<c>.htm")  # fmt: skip
    for name in names:
        hostile = Path("out/benchmarks/star_shape", name)
        hostile.parent.mkdir(parents=True, exist_ok=True)
        hostile.write_text("<script>alert(1)</script>")
    build_leaderboard.main(["out", "--output", "site", "--logs", "copy"])
    copies = [path for path in Path("site/logs").rglob("*") if path.is_file()]
    assert {path.suffixes[-1] for path in copies if path.name != "files.html"} == {".txt"}
    assert all(len(path.suffixes) == 1 for path in copies)
    copied = sum("<script>alert" in path.read_text() for path in copies)
    assert copied == len(names) - 1  # no hidden file
    pages = Path("site/logs").rglob("files.html")
    assert not any("<script>alert" in page.read_text() for page in pages)
    assert find_broken_links(Path("site")) == []


def test_nothing_outside_of_the_submission_is_copied(star_shape: Definition) -> None:
    Path("secret.txt").write_text("hunter2")
    folder = write_result(Path("out"), star_shape)
    write_code(Path("out"), "star_shape")
    Path("out/benchmarks/star_shape/link.txt").symlink_to(Path("secret.txt").resolve())
    Path("out/benchmarks/star_shape/up").symlink_to("..", target_is_directory=True)
    os.mkfifo("out/benchmarks/star_shape/pipe")
    (folder / "power_0.csv").symlink_to(Path("secret.txt").resolve())
    build_leaderboard.main(["out", "--output", "site", "--logs", "copy"])
    for path in Path("site").rglob("*"):
        assert not path.is_symlink()
        assert not path.is_file() or b"hunter2" not in path.read_bytes()


def test_code_behind_a_link_is_not_copied(star_shape: Definition) -> None:
    Path("elsewhere/star_shape").mkdir(parents=True)
    Path("elsewhere/star_shape/key.txt").write_text("hunter2")
    write_result(Path("out"), star_shape)
    Path("out/benchmarks").symlink_to(Path("elsewhere").resolve(), target_is_directory=True)
    build_leaderboard.main(["out", "--output", "site", "--logs", "copy"])
    assert not any(b"hunter2" in path.read_bytes() for path in Path("site").rglob("*.txt"))


def test_too_large_a_file_is_only_named(star_shape: Definition, monkeypatch: Patch) -> None:
    write_result(Path("out"), star_shape)
    write_code(Path("out"), "star_shape")
    Path("out/benchmarks/star_shape/weights.bin").write_bytes(bytes(2**16))
    monkeypatch.setattr(evidence, "COPIED_BYTES_MAX", 2**15)
    build_leaderboard.main(["out", "--output", "site", "--logs", "copy"])
    (page,) = Path("site/logs/acme/box").glob("*~code/files.html")
    assert "weights.bin" in page.read_text()
    assert "not copied: larger than" in page.read_text()
    assert not list(Path("site").rglob("weights*"))


def test_copies_have_a_total_bound(star_shape: Definition, monkeypatch: Patch) -> None:
    write_result(Path("out"), star_shape)
    monkeypatch.setattr(evidence, "COPIED_TOTAL_BYTES_MAX", 1000)
    with pytest.raises(UserError, match=r"more than the 1,000 that a site may hold; fix: put them"):
        build_leaderboard.main(["out", "--output", "site", "--logs", "copy"])
    assert not Path("site").exists()


def test_logs_at_an_address(star_shape: Definition) -> None:
    write_result(Path("round/acme"), star_shape)
    address = "https://example.org/round/v1.0"
    build_leaderboard.main(["round", "--output", "site", "--logs", address])
    (result,) = json.loads(Path("site/results.json").read_text())["results"]
    log = f"{address}/acme/results/box/star_shape-mini-closed/result_0.txt"
    assert result["run_logs"][0]["log"] == log
    assert f'href="{log}"' in Path("site", result["page"]).read_text()


@pytest.mark.parametrize("address", ["javascript:alert(1)", "ftp://x", "https://", "x", "//x/y"])
def test_logs_that_are_at_no_address_are_refused(address: str, star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    with pytest.raises(UserError, match=r"fix: give one of them"):
        build_leaderboard.main(["out", "--output", "site", "--logs", address])
    assert not Path("site").exists()


def test_copies_whose_names_differ_in_case_or_dots() -> None:
    taken: set[str] = set()
    names = ["train.py", "Train.py", "train_py", "train.py.txt", "a/b", "a.b"]
    chosen = [evidence._choose_name(name, taken) for name in names]
    assert len({name.casefold() for name in chosen}) == len(names)
