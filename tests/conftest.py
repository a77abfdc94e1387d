"""Fixtures for tests that compare whole reports, and what holds for all property tests."""

from pathlib import Path

import pytest
from hypothesis import settings

from rules import definition, rcp
from rules.definition import Definition
from tests.compliance import small
from tests.compliance.builder import reference_points

# A busy machine is no reason to fail: an example may take as long as it likes.
settings.register_profile("cepheid", deadline=None)
settings.load_profile("cepheid")


@pytest.fixture
def star_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Definition:
    """The mini scale of a benchmark made for tests, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    return small.install(tmp_path / "benchmarks", monkeypatch)


@pytest.fixture
def fast_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reference points that no result undercuts, whatever was measured for the real benchmarks."""

    def load(name: str, scale: str) -> rcp.ReferencePoints:
        return reference_points(definition.load(name, scale), {1: [1] * 5, 10**6: [1] * 5})

    monkeypatch.setattr(rcp, "load", load)
