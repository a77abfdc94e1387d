"""kfac: Fisher matrices measured against those of other libraries."""

from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import Tensor

from cepheid.measure.engine.byte_counts import measure_peak_bytes
from cepheid.measure.studies.speed import kfac as information
from tests.benchmarks.test_kfac import make_subject


def test_information_matrices_are_timed_and_missing_libraries_named(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(information, "find_spec", lambda name: None)
    monkeypatch.setattr(information, "CHANNELS", (3, 4))
    rows = information.compare_information(make_subject(data_root)).rows
    assert [row.what for row in rows[:2]] == [information.OURS_BLOCKS, information.OURS_PRODUCT]
    assert all(row.result.endswith(" MiB") for row in rows[:2])
    assert [row.result.partition(" is not")[0] for row in rows[2:]] == [
        "left out: curvlinops",
        "left out: backpack",
        "left out: kfac",
    ]


@pytest.mark.parametrize("package", ["curvlinops", "backpack", "kfac"])
def test_other_libraries_compute_the_same(
    package: str, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one is installed, as the README of kfac says; none is a dependency."""
    pytest.importorskip(package)
    found = find_spec
    monkeypatch.setattr(
        information, "find_spec", lambda name: found(name) if name == package else None
    )
    monkeypatch.setattr(information, "CHANNELS", (3, 4))
    facts = information.compare_information(make_subject(data_root)).facts
    others = [name for name in facts if "cepheid" not in name]
    assert others
    assert all(0 < facts[name]["difference"] < 1e-5 for name in others)


def test_peak_memory_is_that_of_tensors_that_live_at_once() -> None:
    def use() -> Tensor:
        first: Tensor = torch.zeros(2**20)
        second = first + 1  # two of 4 MiB
        del first
        total: Tensor = second.mul_(2).sum()
        return total

    assert 8 <= measure_peak_bytes(use) / 2**20 < 8.01
