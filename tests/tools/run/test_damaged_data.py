"""A run on data that are not those that were prepared does not count (T27), whatever it reached."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="runs need the extra torch")
pytest.importorskip("galsim", reason="runs need the extra galsim")

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log.runlog import read
from cepheid.reference.data import store
from cepheid.rules import rounds
from cepheid.rules.definition import BENCHMARKS_VARIABLE
from tests import tiny
from tests.processes import cepheid
from tests.tools.test_run_benchmark import FAST, cepheid_run, environment, events

Change = Callable[[np.ndarray], object]


def flip_a_bit(stamps: np.ndarray) -> None:
    stamps.view(np.uint8).reshape(-1)[12_345] ^= 1


def zero_rows(stamps: np.ndarray) -> None:
    stamps[: int(0.4 * len(stamps))] = 0


def fill_with_zeros(labels: np.ndarray) -> None:
    labels.view(np.uint8).fill(0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare the dataset by a run, for this module alone: others may be preparing theirs."""
    folder = tmp_path_factory.mktemp("whole")
    where = ["--output", folder / "out", "--data", folder / "prepared"]
    ended = cepheid_run("galaxy_shape", *FAST, "--runs", "1", *where)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (log,) = (folder / "out").glob("results/*/*/result_0.txt")
    named, proven = (find_value(log, key) for key in ("data_digest", "data_read"))
    assert named == proven
    (manifest,) = (
        path
        for path in (folder / "prepared").glob("*/manifest.json")
        if json.loads(path.read_text())["digest"] == named
    )
    return manifest.parent


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "data" / whole.name)
    return tmp_path / "data"


def find_value(log: Path, key: str) -> Any:
    (value,) = [record["value"] for record in events(log) if record["key"] == key]
    return value


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("stamps", flip_a_bit, id="one bit"),
        # What is found in one bit is found in many; a run takes seconds.
        pytest.param("stamps", zero_rows, id="40% of the rows", marks=pytest.mark.promise),
        pytest.param("labels", fill_with_zeros, id="all labels", marks=pytest.mark.promise),
    ],
)
def test_damaged_data_do_not_count(name: str, change: Change, copied: Path, tmp_path: Path) -> None:
    (folder,) = copied.iterdir()
    arrays = store.read_manifest(folder).arrays
    assert name in arrays, list(arrays)
    array = np.load(folder / f"{name}.npy", mmap_mode="r+")
    change(array)
    array.flush()
    output = tmp_path / "out"
    where = ["--data", copied, "--output", output]
    ended = cepheid_run("galaxy_shape", *FAST, "--runs", "1", *where)
    assert ended.returncode == 2
    assert "so it does not count (rule T27)" in ended.stderr
    assert f"{name}.npy: rows 0 to 95 are not what was written" in ended.stderr
    assert f"Delete {folder} and prepare the dataset again." in ended.stderr
    assert "Traceback" not in ended.stderr
    (log,) = output.glob("results/*/*/*.txt")
    assert log.name == "interrupted_result_0_0.txt"
    assert not list(output.rglob("run_0.pt")), "the weights of a run that counts"
    assert find_value(log, "data_read") not in ("", find_value(log, "data_digest"))
    found = check_log(read(log.rename(log.with_name("result_0.txt"))), PLACE, rounds.load())
    assert "T27.other_data" in {finding.code for finding in found}


PLACE = Place(rounds.CURRENT, in_result=True)


@pytest.fixture(autouse=True)
def tiny_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.use(Path(environment()[BENCHMARKS_VARIABLE]), monkeypatch)


def test_a_run_whose_data_cannot_be_read_again_does_not_count(copied: Path, tmp_path: Path) -> None:
    """A file that vanished while the run went on is still mapped, so that the run ends well."""
    (folder,) = copied.iterdir()
    output = tmp_path / "out"
    ended = cepheid(
        "run", "galaxy_shape", *FAST, "--runs", "1", "--data", copied, "--output", output,
        environment=environment(), prelude=_delete_labels_after_the_run,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "labels.npy: the file is missing" in ended.stderr
    (log,) = output.glob("results/*/*/*.txt")
    assert log.name == "interrupted_result_0_0.txt"
    assert find_value(log, "data_read").startswith("not digested: ")
    assert str(folder) in find_value(log, "data_read")


def _delete_labels_after_the_run() -> None:
    from cepheid.reference.run.task import BenchmarkTask

    digest = BenchmarkTask.digest_data

    def delete_and_digest(task: BenchmarkTask) -> object:
        (task.folder / "labels.npy").unlink()
        return digest(task)

    BenchmarkTask.digest_data = delete_and_digest  # type: ignore[method-assign,assignment]
