"""`cepheid new-benchmark`: what it begins passes the contract tests as it is."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cepheid.rules import definition, evidence
from cepheid.tools import new_benchmark
from tests import assert_refused
from tests.checkout import ROOMS, copy_folders
from tests.compliance.asserting import Patch, Printed, require

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def benchmarks(tmp_path: Path, monkeypatch: Patch) -> Path:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    monkeypatch.setenv(definition.BENCHMARKS_VARIABLE, str(folder))
    return folder


def test_its_definition_is_valid_and_nothing_is_left(benchmarks: Path, capsys: Printed) -> None:
    assert new_benchmark.main(["star_colour"]) == 0
    assert definition.names() == ("star_colour",)
    begun = definition.load("star_colour", "mini")
    assert begun.title == "Star colour"
    assert begun.provisional
    assert [path.name for path in benchmarks.parent.iterdir()] == ["benchmarks"]
    assert "pytest tests/test_benchmark_contract.py -k star_colour" in capsys.readouterr().out
    text = "".join(path.read_text() for path in (benchmarks / "star_colour").iterdir())
    assert "${" not in text
    assert_refused("already exists", new_benchmark.main, ["star_colour"])


def test_its_example_has_earned_its_target(benchmarks: Path) -> None:
    new_benchmark.main(["star_colour"])
    chosen = definition.load("star_colour", "mini")
    recorded = require(evidence.load(chosen))
    assert evidence.find_problems(recorded, chosen, ("shuffled_labels", "blind")) == []
    fewest, *_, most = sorted(run.count_samples_to_target(chosen) or 0 for run in recorded.correct)
    text = " ".join((benchmarks / "star_colour" / "README.md").read_text().split())
    assert f"after {fewest:,} to {most:,} samples" in text


def test_its_dataset_is_prepared(benchmarks: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("filelock", reason="preparing data needs the extra torch")
    packages = tmp_path / "data_packages"
    packages.mkdir()
    monkeypatch.setattr(new_benchmark, "DATASETS", packages)
    assert new_benchmark.main(["star_blobs", "--dataset"]) == 0
    specification = importlib.util.spec_from_file_location(
        "star_blobs", packages / "star_blobs" / "__init__.py"
    )
    assert specification is not None
    assert specification.loader is not None
    stub = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "star_blobs", stub)
    specification.loader.exec_module(stub)
    facts = {"generator": "star_blobs", "train_samples": 20, "evaluation_samples": 4}
    parameters = stub.parameters_of(facts)
    folder = tmp_path / parameters.folder_name
    stub.prepare(folder, parameters, processes=1)
    blobs = stub.load(folder)
    assert blobs.stamps.shape == (24, 1, 32, 32)
    again = stub.draw(parameters, range(7, 9))
    assert (again["stamps"] == blobs.stamps[7:9]).all()
    e1 = blobs.labels["e1"]
    assert 0.2 < e1.std() < 0.4
    # Long along x where e1 is positive: the second moment in x is larger than in y.
    axis = (np.arange(32) - 15.5) ** 2
    light = blobs.stamps[:, 0].astype(float) * np.exp(-(axis + axis[:, None]) / 50)
    longer = (light * (axis - axis[:, None])).sum((1, 2))
    assert np.corrcoef(longer, e1)[0, 1] > 0.9
    assert_refused("already exists", new_benchmark.main, ["star_blobs", "--dataset"])


NAMES = ("", "Star", "2d", "a-b", "../x", "class", "a\nb", "x" * 41)  # that no module can have
TITLES = ("a: b", 'a"b', "a\nb", "${name}", "x" * 101)  # that would break the files
REFUSED = [(["--", name], "cannot be the name of a benchmark") for name in NAMES]
REFUSED += [(["star_colour", "--title", title], "expected one line") for title in TITLES]


@pytest.mark.parametrize(("line", "says"), REFUSED)
def test_names_and_titles_that_cannot_be(line: list[str], says: str, benchmarks: Path) -> None:
    assert_refused(says, new_benchmark.main, line)
    assert list(benchmarks.iterdir()) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout without other benchmarks, and what the command writes there."""
    pytest.importorskip("torch", reason="a benchmark needs the extra torch")
    pytest.importorskip("galsim", reason="the example needs the extra galsim")
    rooms = [room for room in ROOMS if room != "benchmarks"]
    copy_folders(tmp_path, ("cepheid", *rooms, "tests"), "golden", "peer")
    for name in ("setup.cfg", "pyproject.toml", "benchmarks/__init__.py", "benchmarks/registry.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if (ROOT / ".mypy_cache").is_dir():  # it knows the libraries, which take mypy a minute
        shutil.copytree(ROOT / ".mypy_cache", tmp_path / ".mypy_cache")
    begun = start(tmp_path, "cepheid.tools.cli", "new-benchmark", "star_colour", "--dataset")
    assert begun.returncode == 0, begun.stderr
    return tmp_path


def start(checkout: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.promise
def test_it_passes_the_contract_tests_lint_and_format(checkout: Path) -> None:
    """By the commands that it prints."""
    for line in (
        "pytest tests/test_benchmark_contract.py -k star_colour",
        "ruff check benchmarks reference",
        "ruff format --check benchmarks reference",
        "mypy benchmarks/star_colour reference/data/star_colour",
    ):
        done = start(checkout, *line.split())
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.promise
def test_its_metric_can_be_renamed(checkout: Path) -> None:
    """The example's evidence, which has the old name, is not used."""
    folder = checkout / "benchmarks" / "star_colour"
    edit(
        folder / "benchmark.yaml",
        {
            "e_rmse": "colour_error",
            "train_samples: 3000, evaluation_samples: 1000": (
                "train_samples: 320, evaluation_samples: 80"
            ),
            "eval_every_samples: 3000, max_samples: 30_000": (
                "eval_every_samples: 320, max_samples: 640"
            ),
            "colour_error: 0.155": "colour_error: 1.9",
        },
    )
    run = ["cepheid.tools.cli", "run", "star_colour", "--scale", "mini", "--runs", "1"]
    run += ["--set", "compile=off", "--set", "precision=fp32", "--set", "threads=1", "--output"]

    forgotten = start(checkout, *run, "first")
    assert forgotten.returncode == 2
    assert forgotten.stderr == (
        "cepheid: evaluate() of the task returns e_rmse, but "
        "benchmarks/star_colour/benchmark.yaml also expects colour_error; "
        "fix: use the same names in both\n"
    )
    edit(folder / "task.py", {"e_rmse": "colour_error"})
    renamed = start(checkout, *run, "second")
    assert renamed.returncode == 0, renamed.stderr
    assert "all targets reached after 320 samples" in renamed.stdout


def edit(file: Path, words: dict[str, str]) -> None:
    text = file.read_text(encoding="utf-8")
    for old, new in words.items():
        assert old in text, f"{file}: {old}"
        text = text.replace(old, new)
    file.write_text(text, encoding="utf-8")
