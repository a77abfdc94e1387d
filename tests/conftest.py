"""Fixtures for tests that compare whole reports, and what holds for all property tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from rules import definition
from rules.definition import Definition
from tests.compliance import small

# A busy machine is no reason to fail: an example may take as long as it likes.
settings.register_profile("cepheid", deadline=None)
settings.load_profile("cepheid")


@pytest.fixture
def star_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Definition]:
    """The mini scale of a benchmark made for tests, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    definition._document.cache_clear()
    yield small.install(tmp_path / "benchmarks", monkeypatch)
    definition._document.cache_clear()
