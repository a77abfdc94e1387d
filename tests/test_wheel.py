"""A wheel, installed into an empty environment and used in another folder, is a whole program.

The environment gets its packages from the package index; where none is reached these tests skip.
"""

import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cepheid.rules.host import ROOT
from tests import tiny
from tests.checkout import ROOMS, copy_folders, run_program

pytestmark = pytest.mark.promise

OURS = ROOT / "submissions" / "cepheid"
UNREACHED = "No matching distribution found for setuptools"


def run(
    *line: object, cwd: Path, code: int = 0, variables: Mapping[str, str] = MappingProxyType({})
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end; no checkout is on its path."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = run_program(line, cwd=cwd, env={**inherited, **variables}, timeout=600)
    assert ended.returncode == code, f"{line}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
    assert "Traceback" not in ended.stderr
    return ended


def build(line: list[str], source: Path) -> None:
    """Build in a folder, or skip where no package index is reached."""
    built = run_program(line, cwd=source)
    if UNREACHED in built.stderr:
        pytest.skip("no package index is reached, so nothing can be built")
    assert built.returncode == 0, built.stderr


def copy_sources(folder: Path) -> Path:
    copy_folders(folder, ("cepheid", *ROOMS))
    for name in [
        "setup.cfg",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "Makefile",
        "constraints.txt",
    ]:
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built in a copy of it."""
    source = copy_sources(tmp_path_factory.mktemp("source"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", "dist", "."], source)
    (path,) = (source / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the core of the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder / "core", cwd=folder)
    install(folder / "core", wheel)
    return folder / "core"


def install(environment: Path, wheel: Path, extra: str = "") -> None:
    pip = (environment / "bin/python", "-m", "pip", "--disable-pip-version-check")
    constraints = ("--constraint", ROOT / "constraints.txt")
    # What is imported is compiled then; the rest of SciPy and matplotlib need not be.
    how = ("--quiet", "--no-compile", *constraints)
    run(*pip, "install", *how, f"{wheel}{extra}", cwd=environment)


def test_make_installs_a_checkout_that_may_only_be_read(tmp_path: Path) -> None:
    """Root may write everywhere, so that nothing is written is shown by what is there after."""
    source, venv = copy_sources(tmp_path / "source"), tmp_path / "venv"
    before = {*source.rglob("*")}
    line = ["make", f"VENV={venv}", "PIP=-m pip install -q --no-deps", f"{venv}/.installed-run"]
    build(line, source)
    assert {*source.rglob("*")} == before
    assert (venv / "bin" / "cepheid").is_file()


def test_it_has_one_name_and_every_file_but_the_weights(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "cepheid",
        f"{wheel.name.partition('-py3')[0]}.dist-info",
    }
    listed = run_program(["git", "-C", ROOT, "ls-files", "-z", *ROOMS])
    if listed.returncode:
        pytest.skip("this copy of the checkout has no git, which knows the files")
    tracked = {f"cepheid/{name}" for name in listed.stdout.split("\0") if name}
    wanted = {name for name in tracked if (ROOT / name.removeprefix("cepheid/")).exists()}
    missing = wanted - set(names)
    assert {Path(name).suffix for name in missing} == {".safetensors"}
    face = {f"cepheid/{path.name}" for path in (ROOT / "cepheid").iterdir() if path.is_file()}
    assert {name for name in names if "dist-info" not in name} - wanted == face


def test_the_core_alone_checks_packs_compares_and_begins(environment: Path, tmp_path: Path) -> None:
    cepheid = environment / "bin" / "cepheid"
    assert run(cepheid, "--version", cwd=tmp_path).stdout.startswith("cepheid ")
    assert "0 errors" in run(cepheid, "check", OURS, cwd=tmp_path).stdout
    assert "T8" in run(cepheid, "check", "--explain", "T8", cwd=tmp_path).stdout
    assert "galaxy_shape" in run(cepheid, "run", "--list", cwd=tmp_path).stdout
    described = run(cepheid, "describe-system", "--submitter", "acme", cwd=tmp_path).stdout
    assert '"submitter": "acme"' in described
    begun = ("new-submission", "acme", "--benchmark", "galaxy_shape", "--scale", "mini")
    run(cepheid, *begun, cwd=tmp_path)
    code = tmp_path / "submissions" / "acme"
    assert "from .model import" in (code / "benchmarks/galaxy_shape/task.py").read_text()
    assert (code / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    copy_folders(tmp_path, ["submissions/cepheid"])
    assert "bound" in run(cepheid, "pack", "submissions/cepheid", cwd=tmp_path).stdout
    refused = run(cepheid, "new-benchmark", "star_colour", cwd=tmp_path, code=2)
    assert "clone the repository" in refused.stderr
    lacking = run(cepheid, "summary", OURS, cwd=tmp_path, code=2)
    assert "pip install 'cepheid[score]'" in lacking.stderr


def test_extras_bring_scores_and_the_site(environment: Path, wheel: Path, tmp_path: Path) -> None:
    cepheid = environment / "bin" / "cepheid"
    install(environment, wheel, "[score]")
    assert "galaxy_shape" in run(cepheid, "summary", OURS, cwd=tmp_path).stdout
    install(environment, wheel, "[site]")
    run(cepheid, "leaderboard", OURS, "--output", "site", cwd=tmp_path)
    assert (tmp_path / "site" / "index.html").is_file()
    assert run(cepheid, "diff", "site", "site", cwd=tmp_path).stdout == "nothing changed\n"


def test_a_benchmark_trains_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """With the packages of this environment, which has torch; the wheel comes before a checkout."""
    for package in ("torch", "galsim"):
        if not find_spec(package):
            pytest.skip(f"a run needs {package}")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = (sys.executable, "-m", "cepheid.tools.cli")
    paths = {"PYTHONPATH": str(tmp_path / "installed")}
    sizes: dict[str, Any] = {"data": tiny.SIZES, "timing": tiny.TIMING, "data_digest": None}
    definitions = tiny.write(tmp_path / "definitions", "galaxy_shape", reachable=True, **sizes)
    small = {**paths, "CEPHEID_BENCHMARKS": str(definitions), "CEPHEID_DATA": "data"}
    settings = [text for each in ("compile=off", "threads=1") for text in ("--set", each)]
    line = ("run", "galaxy_shape", "--scale", "mini", "--runs", "1", "--output", "out", *settings)
    ended = run(*program, *line, cwd=tmp_path, variables=small)
    assert "all targets reached" in ended.stdout
    (log,) = (tmp_path / "out").rglob("result_0.txt")
    assert '"file": "reference/run/train.py"' in log.read_text()
    run(*program, "check", log, cwd=tmp_path, variables=small)
    line = ("rcp", "galaxy_shape", "--scale", "mini", "--batch-size", "16")
    refused = run(*program, *line, cwd=tmp_path, code=2, variables=small)
    assert "a record of galaxy_shape is written into a checkout" in refused.stderr
    line = ("run", "galaxy_generation", "--scale", "mini", "--output", "out")
    lacking = run(*program, *line, cwd=tmp_path, code=2, variables=paths)
    assert "weights/mini.safetensors: missing" in lacking.stderr
    assert "an installation has no weights" in lacking.stderr
