"""Logs of benchmarks that generate, and the weights from which trainings start (T24, T25)."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cepheid.compliance.checks import Place, check_result
from cepheid.compliance.read.contents import ResultFolder
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from tests import tiny
from tests.compliance.asserting import Patch
from tests.compliance.builder import (
    Record,
    delay,
    edit,
    generation_records,
    line_number,
    put,
    put_metadata,
    run_records,
    set_clocks,
    write_log,
)
from tests.compliance.judging import check_records, place_of

ROUND = rounds.load("v1.0")
PLACE = Place("v1.0", "acme", "box", "star_images", "mini", "closed", in_result=True)


@pytest.fixture
def star_images(star_shape: Definition) -> Definition:
    return definition.load("star_images", "mini")


@pytest.mark.parametrize("counts", [0, 1, 2, 3])
def test_a_run_may_fail_and_say_why(counts: int, star_images: Definition, tmp_path: Path) -> None:
    records = generation_records(star_images, counts=counts, converged=False)
    assert check_records(records, tmp_path, PLACE) == []
    (alone,) = check_records(records, tmp_path)
    assert alone.code == "T17.not_converged"


def times(change: Callable[[dict[str, list[Any]]], object], nth: int = 0) -> Any:
    return lambda records: edit(records, "generation_times", lambda r: change(r["value"]), nth)


def meta(key: str, nth: int = 0, /, **fields: object) -> Any:
    return lambda records: put_metadata(records, key, nth, **fields)


def drop(key: str, nth: int = 0) -> Any:
    def change(records: list[Record]) -> list[Record]:
        number = line_number(records, key, nth)
        return [*records[: number - 1], *records[number:]]

    return change


def value(key: str, other: object) -> Any:
    return lambda records: put(records, key, value=other)


def drop_count(nth: int) -> Any:
    def change(records: list[Record]) -> list[Record]:
        for key in ("generation_start", "generation_times", "generation_stop"):
            records = drop(key, nth)(records)
        return records

    return change


def slower_clock(records: list[Record]) -> list[Record]:
    later = copy.deepcopy(records)
    delay(later[line_number(records, "generation_start") :], 10_000)
    return later


def generate_again(records: list[Record]) -> list[Record]:
    first = line_number(records, "generation_start", 2) - 1
    again = copy.deepcopy(records[first : first + 3])
    for record in again:
        set_clocks(record, records[-3])
    return [*records[:-3], *again, *records[-3:]]


CASES: dict[str, tuple[str, str, int, Any]] = {
    "a count is left out": ("T24.images_count", "generation_start", 1, drop_count(1)),
    "the last count is left out": ("T24.missing", "run_stop", 0, drop_count(2)),
    "another number of images": (
        "T24.images_count", "generation_start", 2, meta("generation_start", 2, images_count=40)),
    "times of another number of images": (
        "T24.images_count", "generation_times", 1, meta("generation_times", 1, images_count=50)),
    **{name: ("T24.repetitions", "generation_times", 0, times(change)) for name, change in (
        ("a slow repetition is left out", lambda v: [v[name].pop() for name in v]),
        ("one list is shorter", lambda v: v["decoding_seconds"].pop()),
        ("no sampling", lambda v: v.pop("sampling_seconds")),
        ("a time is text", lambda v: v["sampling_seconds"].__setitem__(3, "0.01")),
        ("a negative time", lambda v: v["sampling_seconds"].__setitem__(3, -0.5)))},
    "times that the clock has no room for": (
        "T24.too_long", "generation_times", 1,
        times(lambda v: v["decoding_seconds"].__setitem__(0, 9.0), 1)),
    "faster times than the clock shows": ("T24.untimed", "generation_times", 0, slower_clock),
    "images counted wrongly": (
        "T24.samples_count", "eval_start", 0, meta("eval_start", samples_count=7)),
    "run_stop counts wrongly": (
        "T24.samples_count", "run_stop", 0, meta("run_stop", samples_count=7)),
    "no proof of the data": ("T27.missing", "run_stop", 0, drop("data_read")),
    "a digest of other bytes": ("T27.other_data", "data_read", 0, value("data_read", "0" * 64)),
    "other weights": ("T25.other_weights", "weights_digest", 0, value("weights_digest", "c" * 64)),
    "no numbers of images": ("T24.projections", "run_stop", 0, drop("image_projections")),
    **{name: ("T24.projections", "image_projections", 0, lambda records, how=change: edit(
        records, "image_projections", how)) for name, change in (
        ("a number is missing", lambda r: r["value"].pop()),
        ("a number is text", lambda r: r["value"].__setitem__(1, "0.5")),
        ("one number for all images", lambda r: r.update(value=[1.5] * len(r["value"]))),
        ("numbers that are none", lambda r: r.update(value={"numbers": 3})))},
    "no weights": ("T2.missing", "init_stop", 0, drop("weights_digest")),
    "generation after the evaluation": ("T3.out_of_turn", "run_stop", 0, generate_again),
    "times twice": ("T3.out_of_turn", "generation_times", 1, lambda records: [
        *records[: line_number(records, "generation_times")],
        *copy.deepcopy(records[line_number(records, "generation_times") - 1 :])]),
    "an event of training": ("T2.unknown_key", "block_start", 0,
        lambda records: put(records, "generation_start", key="block_start")),
    "a target is missed": ("T9.false_success", "run_stop", 0, lambda records: edit(
        records, "eval_accuracy",
        lambda record: (record["metadata"]["metrics"].update(distinct=0.1)))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_change_breaks_one_rule(name: str, star_images: Definition, tmp_path: Path) -> None:
    code, key, nth, change = CASES[name]
    records = change(generation_records(star_images))
    found = check_records(records, tmp_path, PLACE)
    assert code in {finding.code for finding in found}, found
    named = [finding.line for finding in found if finding.code == code]
    if name not in ("generation after the evaluation", "times twice"):
        assert named[0] == line_number(records, key, nth), found
    assert all(finding.hint for finding in found if finding.code == code)


def test_other_weights_are_for_the_open_division(star_images: Definition, tmp_path: Path) -> None:
    opened = generation_records(star_images, division="open")
    records = put(opened, "weights_digest", value="c" * 64)
    assert check_records(records, tmp_path) == []


def test_times_may_not_be_copied(star_images: Definition, tmp_path: Path) -> None:
    first, second = (generation_records(star_images, index) for index in (0, 1))
    copied = [
        {**theirs, "value": ours["value"]} if theirs["key"] == "generation_times" else theirs
        for ours, theirs in zip(first, second, strict=True)
    ]
    for name, records, expected in (("own", second, []), ("copied", copied, ["T19.copied_times"])):
        folder = tmp_path / name
        write_log(folder / "result_0.txt", first)
        write_log(folder / "result_1.txt", records)
        runs = tuple(runlog.read(folder / f"result_{k}.txt") for k in (0, 1))
        found = check_result(ResultLogs(ResultFolder(folder, None, ()), runs), PLACE, ROUND)
        assert [finding.code for finding in found if finding.is_error] == expected


def test_nothing_is_closed_without_published_weights(tmp_path: Path, monkeypatch: Patch) -> None:
    where, unpublished = tmp_path / "benchmarks", {"weights_digest": None}
    full = tiny.install(where, monkeypatch, "galaxy_generation", "full", model=unpublished)
    for division, expected in (("closed", ["T25.no_weights"]), ("open", [])):
        records = generation_records(full, division=division)
        found = check_records(records, tmp_path, place_of(full, division))
        assert [finding.code for finding in found] == expected


SSD, SHAPE = definition.load("ssd", "full"), definition.load("galaxy_shape", "mini")
DIGEST: str = SSD.model["given_weights"]["digest"]
Change = Callable[[list[Record]], list[Record]]


def give(value: object) -> Change:
    return lambda records: put(records, "weights_digest", value=value)


def name_some(records: list[Record]) -> list[Record]:
    place = line_number(records, "model_parameters")
    named = {**records[place - 1], "key": "weights_digest", "value": "b" * 64}
    return [*records[:place], named, *records[place:]]


def find_codes(records: list[Record], chosen: Definition, folder: Path, division: str) -> list[str]:
    found = check_records(records, folder, place_of(chosen, division))
    assert all(finding.hint for finding in found if finding.code.startswith("T25"))
    return [finding.code for finding in found if finding.is_error]


def test_closed_starts_from_the_weights_of_the_definition(tmp_path: Path) -> None:
    for chosen, change, expected in [
        (SSD, lambda records: records, []),
        (SSD, give(DIGEST.upper()), ["T25.other_start"]),
        (SSD, give(DIGEST[:8]), ["T25.other_start"]),
        (SSD, give(DIGEST[:8] + "0" * 56), ["T25.other_start"]),
        (SSD, give(DIGEST[:-1] + "0"), ["T25.other_start"]),
        (SSD, give(DIGEST + "0"), ["T25.other_start"]),
        (SSD, give("c" * 64), ["T25.other_start"]),
        (SSD, lambda logged: [r for r in logged if r["key"] != "weights_digest"], ["T25.missing"]),
        (SHAPE, lambda records: records, []),
        (SHAPE, name_some, ["T25.not_given"]),
    ]:
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
        found = check_records(give(value)(run_records(chosen, blocks=1)), tmp_path)
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
        found = check_records(records, tmp_path)
        assert {finding.code for finding in found if finding.rule == "T25"} == expected
