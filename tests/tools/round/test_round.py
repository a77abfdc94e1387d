"""A round from its announcement to its archive, as docs/organisers.md leads through it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cepheid.rules import definition
from cepheid.rules.host import ROOT
from tests.checkout import ROOMS, copy_folders
from tests.compliance import small
from tests.compliance.builder import SYSTEM, derive_seed_of, write_result

GUIDE = ROOT / "docs" / "organisers.md"
LEFT_BEHIND = 1  # the exit code of carry where a result must be run again


def list_blocks() -> Iterator[tuple[str, str]]:
    """Yield kind and text of every fenced block of the page."""
    text = GUIDE.read_text(encoding="utf-8")
    yield from re.findall(r"^```(sh|yaml)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with three packed submissions and a key, and made-up benchmarks."""
    root = tmp_path / "cepheid"
    copy_folders(root, ("cepheid", *ROOMS))
    for name in ("LICENSE", "setup.cfg"):
        shutil.copy(ROOT / name, root / name)
    shape = small.install(tmp_path / "benchmarks", monkeypatch)
    images = definition.load("star_images", "mini")
    for submitter in ("acme", "late"):
        system = {**SYSTEM, "submitter": submitter}
        write_result(root / "submissions" / submitter, shape, system=system)
    write_result(root / "submissions" / "acme", images)
    copied = root / "submissions" / "copycat"
    shutil.copytree(root / "submissions" / "acme", copied)
    seeds = [  # who copies must at least change the seeds, which follow from the submitter's name
        [str(derive_seed_of(shape, index, {**SYSTEM, "submitter": who})) for index in range(5)]
        for who in ("acme", "copycat")
    ]
    changes = {'"acme"': '"copycat"', **dict(zip(*seeds, strict=True))}
    for path in (path for path in copied.rglob("*") if path.is_file()):
        text = path.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        path.write_text(text)
    shutil.rmtree(copied / "results" / "box" / "star_images-mini-closed")
    shutil.rmtree(copied / "benchmarks" / "star_images")
    programs = tmp_path / "bin"
    programs.mkdir()
    start = "from cepheid.tools.cli import console\nconsole()\n"
    (programs / "cepheid").write_text(f"#!{sys.executable}\n{start}")
    (programs / "cepheid").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("HOME", str(tmp_path))
    for submitter in ("acme", "late", "copycat"):
        assert run(f"cepheid pack submissions/{submitter}", root).returncode == 0
    key = tmp_path / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    run(f"ssh-keygen -q -t ed25519 -N '' -f {key}", root)
    (root / "allowed_signers").write_text(f"organisers {key.with_suffix('.pub').read_text()}")
    return root


def run(line: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], cwd=root, capture_output=True, text=True, check=False
    )


@pytest.mark.promise
def test_the_guide_of_the_organisers_leads_through_a_round(checkout: Path, tmp_path: Path) -> None:
    said: dict[str, str] = {}
    for kind, text in list_blocks():
        if kind == "yaml":
            place, content = text.removeprefix("# ").split("\n", 1)
            with (checkout / place).open("a") as file:
                file.write(content)
            continue
        for line in text.splitlines():
            if "--round v1.0 --output" in line:  # between the rounds a target changes
                tighten(tmp_path / "benchmarks" / "star_shape" / "benchmark.yaml")
            done = run(line, checkout)
            assert done.returncode in (0, LEFT_BEHIND), f"{line}\n{done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"
            said[line] = done.stdout
    status = said["cepheid round status submissions"]
    assert re.search(r"^late +2026-07-01 \(late\) +1 rejected +S10: 1", status, re.MULTILINE)
    assert re.search(r"^acme +2026-06-28 ", status, re.MULTILINE)
    site = checkout / "v1.0" / "site"
    verdicts = {
        result["id"]: result["verdict"]
        for result in json.loads((site / "results.json").read_text())["results"]
    }
    assert verdicts["acme/box/star_images-mini-closed"] == "withdrawn"
    assert verdicts["late/box/star_shape-mini-closed"] == "rejected"
    page = (site / "results" / "acme" / "box" / "star_images-mini-closed.html").read_text()
    assert "The weights were those of another benchmark." in page
    assert "Cite this result" in page
    assert "published 2026-08-04" in page
    (withdrawal,) = json.loads((site / "changes.json").read_text())
    assert withdrawal["on"] == "2026-09-02"
    decisions = (site / "decisions.html").read_text()
    assert "Two runs on one machine never have equal times." in decisions
    carried = next(text for line, text in said.items() if "round carry" in line)
    assert "run again: star_shape-mini-closed (T14.definition)" in carried
    assert "carried: star_images-mini-closed" in carried
    assert not hides(checkout / "preview", ("acme", "copycat", "late/", "box", "CPU 9000"))


def tighten(path: Path) -> None:
    """Change a target, as a new round may."""
    document = yaml.safe_load(path.read_text())
    document["scales"]["mini"]["targets"]["rmse"] /= 1e3
    path.write_text(yaml.safe_dump(document))


def hides(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Return where a folder shows a name that it must not."""
    static = ("site.css", "site.js", "compare.js", "costs.js", "glossary.html", "elsewhere.html")
    return [
        f"{path}: {name}"
        for path in folder.rglob("*")
        if path.is_file() and path.name not in static and not path.name.endswith("schema.json")
        if path.parent.name != "vendor"
        for name in names
        if re.search(rf"\b{re.escape(name)}", path.read_text())
    ]
