"""A second round: what was judged by frozen definitions stays what it is."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from tests.compliance.builder import write_result

RESULT = Path("out")


@pytest.fixture
def frozen(star_shape: Definition, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which the definitions of v1.0 are frozen; returns those of the next round."""
    monkeypatch.setattr(definition, "FROZEN", tmp_path / "frozen")
    shutil.copytree(definition.locate_benchmarks(), tmp_path / "frozen" / "v1.0")
    write_result(RESULT, star_shape)
    return definition.locate_benchmarks()


def find_errors(judged_in: rounds.Round) -> list[Finding]:
    judgement = judge([package.read(RESULT)], judged_in)
    return [finding for finding in judgement.findings if finding.is_error]


def change(benchmarks: Path, what: str) -> None:
    path = benchmarks / "star_shape" / "benchmark.yaml"
    document = yaml.safe_load(path.read_text())
    if what == "target":
        document["scales"]["mini"]["targets"]["rmse"] /= 1e3
    elif what == "scale":
        del document["scales"]["mini"]
    elif what == "renamed":
        path.parent.rename(path.parents[1] / "star_forms")
        return
    elif what == "reference points":
        path.with_name("rcp.json").unlink()
        return
    path.write_text(yaml.safe_dump(document))
    definition._read_document.cache_clear()


@pytest.mark.parametrize("what", ["target", "scale", "renamed", "reference points"])
def test_a_changed_definition_voids_no_result_of_a_frozen_round(what: str, frozen: Path) -> None:
    before = judge([package.read(RESULT)], rounds.load("v1.0"))
    change(frozen, what)
    after = judge([package.read(RESULT)], rounds.load("v1.0"))
    assert not find_errors(rounds.load("v1.0"))
    assert after.findings == before.findings
    assert [r.convergence for r in after.results] == [r.convergence for r in before.results]


@pytest.fixture
def second(frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Rounds v1.0 and v1.1, which carries results of the first; returns their folder."""
    folder = tmp_path / "rounds"
    folder.mkdir()
    first = yaml.safe_load((rounds.FOLDER / "v1.0.yaml").read_text())
    for document in (first, first | {"name": "v1.1", "carries": ["v1.0"]}):
        (folder / f"{document['name']}.yaml").write_text(yaml.safe_dump(document))
    monkeypatch.setattr(rounds, "FOLDER", folder)
    rounds.load.cache_clear()
    yield frozen
    rounds.load.cache_clear()


def test_a_round_carries_results_whose_definition_is_the_same(second: Path) -> None:
    assert not find_errors(rounds.load("v1.1"))
    change(second, "target")
    assert {finding.code for finding in find_errors(rounds.load("v1.1"))} == {"T14.definition"}


def test_a_round_that_carries_nothing_refuses_old_results(second: Path) -> None:
    path = rounds.FOLDER / "v1.1.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"carries": []}))
    rounds.load.cache_clear()
    assert {finding.code for finding in find_errors(rounds.load("v1.1"))} == {"T14.round"}
