"""`cepheid run` of a benchmark that generates, as its user meets it."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from cepheid.rules.definition import BENCHMARKS_VARIABLE
from tests import processes, tiny
from tests.processes import Ended
from tests.tools.test_run_benchmark import events


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own: a command refuses data that another test is preparing."""
    return tmp_path_factory.mktemp("data")


def cepheid(data_root: Path, output: Path, *more: str) -> Ended:
    images = {"counts": [1, 3, 40], "repetitions": [200, 15, 12], "warm_up_images": 4}
    folder = tiny.folder_of(
        "galaxy_generation", reachable=True, data=tiny.SIZES, generation=images, data_digest=None
    )
    return processes.cepheid(
        "run", "galaxy_generation", "--scale", "mini",
        "--set", "compile=off", "--set", "precision=fp32", "--set", "threads=1",
        "--data", data_root, "--output", output, *more,
        environment={BENCHMARKS_VARIABLE: str(folder), "COLUMNS": "9999"},
    )  # fmt: skip


def folder(output: Path) -> Path:
    (found,) = (output / "results").glob("*/galaxy_generation-mini-closed")
    return found


def test_runs_and_goes_on(data_root: Path, tmp_path: Path) -> None:
    first = cepheid(data_root, tmp_path, "--runs", "1")
    assert first.returncode == 0, first.stdout + first.stderr
    lines = first.stdout.splitlines()
    assert [line for line in lines if "3 images:" in line and "(p50; p99" in line]
    assert "all targets reached after 725 images" in first.stdout
    assert "Warning" not in first.stderr
    here = folder(tmp_path)
    kept = sorted(path.name for path in here.iterdir())
    assert {"report_0.json", "pictures_0.png", "result_0.txt"} <= set(kept)
    report = (here / "report_0.json").read_text()
    assert "2.26 billion galaxies of CosmoDC2" in report
    assert "17.7 days" in report
    assert not (tmp_path / "checkpoints").exists(), "the weights are those that it began with"
    before = (here / "result_0.txt").read_bytes()
    more = cepheid(data_root, tmp_path, "--runs", "2")
    assert more.returncode == 0, more.stdout + more.stderr
    assert (here / "result_0.txt").read_bytes() == before
    times = [
        next(event["value"] for event in log if event["key"] == "generation_times")
        for log in (events(here / f"result_{index}.txt") for index in (0, 1))
    ]
    assert times[0] != times[1]
    assert json.loads((here / "report_1.json").read_text())["tables"][0]["rows"][2]["images"] == 40
