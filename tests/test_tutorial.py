"""The commands of docs/tutorial.md, one after the other, in a checkout, with runs of seconds."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from cepheid.rules.host import ROOT
from tests import tiny
from tests.checkout import ROOMS, copy_folders, run_program

# `cepheid`, but a run tunes nothing unless its settings are given, as an audit gives them.
CEPHEID = """\
import sys
if sys.argv[1] == "run" and "--seed" not in sys.argv:
    for value in ("compile=off", "precision=fp32", "threads=1"):
        sys.argv += ["--set", value]
from cepheid.tools.cli import console
console()
"""


def list_lines(kind: str) -> list[str]:
    """Return every line of the tutorial's blocks that are marked so."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def mask(text: str) -> str:
    """Return a text without what depends on the machine and the seed: its name, and numbers."""
    named = re.sub(r"\b\dx-[\w-]+", "box", text)
    return " ".join(re.sub(r"-?\d[\d,.]*(?:e[+-]\d+)?", "#", named).split())


@pytest.mark.skipif(not shutil.which("bwrap"), reason="its audit needs bubblewrap")
@pytest.mark.promise
def test_the_tutorial_ends_with_a_submission_without_findings(tmp_path: Path) -> None:
    root, programs = tmp_path / "cepheid", tmp_path / "bin"
    copy_folders(root, ("cepheid", *ROOMS))
    for name in ("LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    (root / "submissions").mkdir()
    # A definition that any quality reaches after 32 samples, without reference points for it.
    sizes: dict[str, Any] = {"data": tiny.SIZES, "timing": tiny.TIMING, "data_digest": None}
    tiny.write(root / "benchmarks", "galaxy_shape", reachable=True, **sizes)
    (root / "benchmarks" / "galaxy_shape" / "rcp.json").unlink()
    programs.mkdir()
    (programs / "cepheid").write_text(f"#!{sys.executable}\n{CEPHEID}")
    (programs / "cepheid").chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(root), "GIT_CONFIG_GLOBAL": os.devnull}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    environment |= {f"GIT_{who}_NAME": "acme" for who in ("AUTHOR", "COMMITTER")}
    environment |= {f"GIT_{who}_EMAIL": "a@acme.example" for who in ("AUTHOR", "COMMITTER")}

    def run(line: str) -> str:
        done = run_program(["bash", "-c", line], cwd=root, env=environment)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    run("git init -q -b main && git add -A && git commit -q -m 'the suite'")
    printed = {line: run(line) for line in list_lines("sh")}
    said = " ".join(printed.values())
    missing = printed["cepheid check submissions/acme || true"]
    assert "S2.unfilled notes is still to be filled in" in missing
    assert "S3.unfilled the README.md is still to be written" in missing
    checked = printed["cepheid check submissions/acme"]
    assert "S4.no_manifest warning" in checked
    assert "pass: 5 logs, 0 errors, " in checked  # other tests may be other work: T19.busy
    audited = printed["cepheid audit submissions/acme --run-submitted-code"]
    assert "agrees: differs by 0.0% in the second half" in audited
    assert "the submitter's code, contained by bwrap" in audited
    assert "bound together" in printed["cepheid pack submissions/acme"]
    assert "5/5" in printed["cepheid summary submissions/acme"]
    assert "0 errors" in printed["cepheid check --changed HEAD~1"]
    assert "Traceback" not in said
    shown = mask("\n".join(printed.values()))
    assert [line for line in list_lines("text") if line != "…" and mask(line) not in shown] == []
    committed = run("git show --stat=300 --name-only --format= HEAD").split()
    assert all(name.startswith("submissions/acme/") for name in committed)
    assert not any("checkpoints" in name or "__pycache__" in name for name in committed)
    manifest = json.loads((root / "submissions/acme/manifest.json").read_text())
    assert {f"submissions/acme/{name}" for name in manifest["files"]} == {
        name for name in committed if not name.endswith("manifest.json")
    }
