"""T10 and T25: who differs from whom in what a definition leaves open, and who is not warned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cepheid.rules import definition
from cepheid.rules.definition import Definition
from tests import tiny
from tests.compliance.asserting import Patch
from tests.compliance.builder import SYSTEM, put, run_records, write_log, write_result
from tests.compliance.judging import find_all


@pytest.fixture(autouse=True)
def work_in(tmp_path: Path, monkeypatch: Patch) -> None:
    """Write submissions beside nothing else."""
    monkeypatch.chdir(tmp_path)


Logged = Mapping[str, str]  # digests by the keys of their events


def submit(who: str, chosen: Definition, logged: Logged, division: str = "closed") -> Path:
    system = {**SYSTEM, "submitter": who}
    root = Path("submissions", who)
    folder = write_result(root, chosen, system=system, division=division)
    for index in range(chosen.runs.required):
        records = run_records(chosen, index, system=system, division=division)
        for key in ("data_digest", "data_read", "weights_digest"):
            value = logged.get("data_digest" if key == "data_read" else key)
            if value and any(record["key"] == key for record in records):
                records = put(records, key, value=value)
        write_log(folder / f"result_{index}.txt", records)
    return root


def find_differences() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for finding in find_all(Path("submissions")):
        if "differ" in finding.code:
            assert finding.severity == "warning"
            assert finding.line
            found.setdefault(finding.path.parts[1], set()).add(finding.code)
    return found


A, B, C = ({"data_digest": letter * 64} for letter in "abc")


@pytest.mark.parametrize(
    ("logged", "warned"),
    [
        ((A, A), ""),
        ((A, B), "acme bolt"),
        ((A, A, A), ""),
        ((A, A, B), "acme bolt core"),
        ((A, B, C), "acme bolt core"),
    ],
)
def test_results_of_other_data_are_warned_on_all_sides(
    logged: tuple[Logged, ...], warned: str, star_shape: Definition
) -> None:
    for who, digests in zip(("acme", "bolt", "core"), logged, strict=False):
        submit(who, star_shape, digests)
    assert find_differences() == {who: {"T10.data_differ"} for who in warned.split()}


def test_scales_and_divisions(star_shape: Definition, monkeypatch: Patch, tmp_path: Path) -> None:
    submit("acme", star_shape, A)
    submit("bolt", definition.load("star_shape", "full"), B)
    assert find_differences() == {}  # another scale has other data
    submit("core", star_shape, B, "open")
    assert set(find_differences()) == {"acme", "core"}  # open has the same data


def test_what_the_definition_knows_is_compared_with_that(tmp_path: Path) -> None:
    chosen = definition.load("galaxy_shape", "mini")
    assert chosen.data_digest
    submit("acme", chosen, {})
    submit("bolt", chosen, A)
    assert find_differences() == {}
    assert "T10.data" in {finding.code for finding in find_all(Path("submissions"))}


@pytest.mark.parametrize(
    ("digest", "division", "warned"),
    [("unconfirmed", "closed", True), ("unconfirmed", "open", False), ("a" * 64, "closed", False)],
)
def test_weights_that_nobody_confirmed_are_compared(
    digest: str, division: str, warned: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    given: Any = {"file": "a.pth", "digest": digest}
    weights = {"given_weights": given}
    chosen = tiny.install(tmp_path / "rules", monkeypatch, "ssd", "full", model=weights)
    for who, letter in (("acme", "a"), ("bolt", "b")):
        submit(who, chosen, {"weights_digest": letter * 64}, division)
    expected = {who: {"T25.weights_differ"} for who in ("acme", "bolt")} if warned else {}
    assert find_differences() == expected
