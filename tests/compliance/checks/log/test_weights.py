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
from tests.compliance.asserting import Patch
from tests.compliance.builder import Record, line_number, put, run_records, write_log

SSD, SHAPE = definition.load("ssd", "full"), definition.load("galaxy_shape", "mini")
DIGEST: str = SSD.model["given_weights"]["digest"]
Change = Callable[[list[Record]], list[Record]]


def give(value: object) -> Change:
    return lambda records: put(records, "weights_digest", value=value)


def drop(records: list[Record]) -> list[Record]:
    return [record for record in records if record["key"] != "weights_digest"]


def add(records: list[Record]) -> list[Record]:
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
        (SSD, give(DIGEST.upper()), ["T25.other_start"]),
        (SSD, give(DIGEST[:8]), ["T25.other_start"]),
        (SSD, give(DIGEST[:8] + "0" * 56), ["T25.other_start"]),
        (SSD, give(DIGEST[:-1] + "0"), ["T25.other_start"]),
        (SSD, give(DIGEST + "0"), ["T25.other_start"]),
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


@pytest.mark.parametrize("name", definition.names())
def test_every_definition_names_its_weights_by_all_digits(name: str) -> None:
    for scale in definition.scales(name):
        chosen = definition.load(name, scale)
        given = chosen.model.get("given_weights", {})
        several = [each for key, each in given.items() if key != "by"]
        for weights in [given] if "file" in given else several:
            assert len(weights["digest"]) == 64 or chosen.provisional
            assert weights["digest"].startswith(weights["file"][-12:-4]) or scale == "mini"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"file": "../a.pth", "digest": DIGEST}, "given_weights"),
        ({"file": "a.pth", "digest": DIGEST[:8]}, r"given_weights.digest: 'b627a593' does not"),
        ({"file": "a.pth", "digest": DIGEST[:63]}, "given_weights.digest"),
        ({"file": "a.pth", "digest": DIGEST.upper()}, "given_weights.digest"),
        ({"by": "a", "b": {"file": "a.pth", "digest": DIGEST[:8]}}, "given_weights.b.digest"),
        ({"file": "a.pth", "digest": "unknown"}, "given_weights"),
    ],
)
def test_files_have_digests(weights: Any, message: str, tmp_path: Path, monkeypatch: Patch) -> None:
    with pytest.raises(UserError, match=message):
        tiny.install(tmp_path, monkeypatch, "ssd", "full", model={"given_weights": weights})


def test_unconfirmed_weights_keep_a_scale_provisional(tmp_path: Path, monkeypatch: Patch) -> None:
    given = {"given_weights": {"file": "a.pth", "digest": "unconfirmed"}}
    chosen = tiny.install(tmp_path, monkeypatch, "ssd", "full", model=given)
    for value, expected in (("a" * 64, "T25.unconfirmed"), ("a" * 63, "T25.other_start")):
        path = write_log(tmp_path / "result_0.txt", give(value)(run_records(chosen, blocks=1)))
        found = check_log(runlog.read(path), Place("v1.0"), rounds.load())
        assert expected in {finding.code for finding in found}
    with pytest.raises(UserError, match="'provisional' is a required property"):
        tiny.install(tmp_path / "mini", monkeypatch, "ssd", "mini", model=given)


def test_a_frozen_definition_may_have_fewer_digits(tmp_path: Path, monkeypatch: Patch) -> None:
    document = definition.BENCHMARKS / "ssd" / "benchmark.yaml"
    (tmp_path / "v1.0" / "ssd").mkdir(parents=True)
    old = document.read_text().replace(DIGEST, DIGEST[:8])
    (tmp_path / "v1.0" / "ssd" / "benchmark.yaml").write_text(old)
    monkeypatch.setattr(definition, "FROZEN", tmp_path)
    assert definition.load("ssd", "full", "v1.0").model["given_weights"]["digest"] == DIGEST[:8]
    for value, expected in ((DIGEST, set()), ("c" * 64, {"T25.other_start"})):
        records = give(value)(run_records(definition.load("ssd", "full", "v1.0"), blocks=1))
        run = runlog.read(write_log(tmp_path / "result_0.txt", records))
        found = check_log(run, Place("v1.0"), rounds.load())
        assert {finding.code for finding in found if finding.rule == "T25"} == expected
