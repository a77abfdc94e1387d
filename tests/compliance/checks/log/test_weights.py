"""T25 for trainings: from which weights they start."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from tests import tiny
from tests.compliance.builder import Record, line_number, put, run_records, write_log

SSD, SHAPE = definition.load("ssd", "full"), definition.load("galaxy_shape", "mini")
Change = Callable[[list[Record]], list[Record]]


def give(value: object) -> Change:
    """Let the log name these weights."""
    return lambda records: put(records, "weights_digest", value=value)


def drop(records: list[Record]) -> list[Record]:
    return [record for record in records if record["key"] != "weights_digest"]


def add(records: list[Record]) -> list[Record]:
    """Name weights in a log that has none."""
    place = line_number(records, "model_parameters")
    named = {**records[place - 1], "key": "weights_digest", "value": "b" * 64}
    return [*records[:place], named, *records[place:]]


def find_codes(records: list[Record], chosen: Definition, folder: Path, division: str) -> list[str]:
    place = Place("v1.0", "acme", "box", chosen.name, chosen.scale, division, in_result=True)
    path = write_log(folder / "result_0.txt", records)
    found = check_log(runlog.read(path), place, rounds.load())
    assert all(finding.hint for finding in found if finding.code.startswith("T25"))
    return [finding.code for finding in found if finding.is_error]


@pytest.mark.parametrize(
    ("chosen", "change", "expected"),
    [
        (SSD, lambda records: records, []),
        (SSD, give("B627A593" + "0" * 56), ["T25.other_start"]),
        (SSD, give("b627a593"), ["T25.other_start"]),
        (SSD, give("c" * 64), ["T25.other_start"]),
        (SSD, drop, ["T25.missing"]),
        (SHAPE, lambda records: records, []),
        (SHAPE, add, ["T25.not_given"]),
    ],
)
def test_closed_starts_from_the_weights_of_the_definition(
    chosen: Definition, change: Change, expected: list[str], tmp_path: Path
) -> None:
    records = change(run_records(chosen, blocks=1))
    assert find_codes(records, chosen, tmp_path, "closed") == expected
    opened = change(run_records(chosen, blocks=1, division="open"))
    assert find_codes(opened, chosen, tmp_path, "open") == []


def test_a_hyperparameter_may_choose_the_file() -> None:
    files: dict[str, Any] = {name: {"file": name, "digest": name * 8} for name in "ab"}
    given = MappingProxyType({"by": "model_backbone", **files})
    chosen = dataclasses.replace(SSD, model=MappingProxyType({"given_weights": given}))
    assert chosen.find_given_weights({"model_backbone": "b"}) == files["b"]
    assert chosen.find_given_weights({"model_backbone": "c"}) is None
    assert chosen.find_given_weights({"model_backbone": "by"}) is None
    assert SHAPE.find_given_weights({}) is None


def test_a_definition_gives_files_with_digests(tmp_path: Path, monkeypatch: Any) -> None:
    wrong = {"given_weights": {"file": "../a.pth", "digest": "b627a593"}}
    with pytest.raises(UserError, match="given_weights"):
        tiny.install(tmp_path, monkeypatch, "ssd", "full", model=wrong)
