"""A prepared dataset to read, and copies of it to damage."""

import shutil
from pathlib import Path

import pytest

from tests.reference.data.numbered import prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "numbers"
    prepare(folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A prepared folder to damage."""
    return Path(shutil.copytree(prepared, tmp_path / "numbers"))
