"""kfac keeps mixed batches that may be larger than the memory."""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.benchmarks.kfac.model import allocate
from cepheid.rules.errors import UserError

CPU = torch.device("cpu")


def test_a_tensor_that_fits_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", None)
    assert allocate((3, 4), CPU).tolist() == [[0.0] * 4] * 3


def test_a_tensor_that_does_not_fit_is_in_a_file_without_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    has_little_memory(monkeypatch, tmp_path)
    tensor = allocate((256, 1024), CPU)
    assert not list(tmp_path.iterdir())
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert f"{tmp_path}/cepheid-" in maps.read_text(), "no file holds the tensor"
    assert not tensor.any()
    tensor[1:].copy_(torch.arange(1024.0))
    assert tensor.sum() == 255 * 1023 * 512


def test_a_full_disk_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has_little_memory(monkeypatch, tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**40))
    with pytest.raises(UserError, match=r"GiB free, but 4096\.0 GiB .* fix: set TMPDIR"):
        allocate((2**20, 2**20), CPU)
    assert not os.listdir(tmp_path)


def has_little_memory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A megabyte, and this folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**20))
