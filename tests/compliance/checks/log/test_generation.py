"""Logs of benchmarks that generate: a compliant one raises nothing, each change the right rule."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks import Place, check_log, check_result
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.contents import ResultFolder
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
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
    set_clocks,
    write_log,
)

ROUND = rounds.load("v1.0")
PLACE = Place("v1.0", "acme", "box", "star_images", "mini", "closed", in_result=True)


@pytest.fixture
def star_images(star_shape: Definition) -> Definition:
    return definition.load("star_images", "mini")


def check(records: list[Record], tmp_path: Path, place: Place = PLACE) -> list[Finding]:
    return check_log(runlog.read(write_log(tmp_path / "result_0.txt", records)), place, ROUND)


def test_a_compliant_log_raises_nothing(star_images: Definition, tmp_path: Path) -> None:
    for place in (PLACE, Place("v1.0")):
        assert check(generation_records(star_images), tmp_path, place) == []


@pytest.mark.parametrize("counts", [0, 1, 2, 3])
def test_a_run_may_fail_and_say_why(counts: int, star_images: Definition, tmp_path: Path) -> None:
    records = generation_records(star_images, counts=counts, converged=False)
    assert check(records, tmp_path) == []
    (alone,) = check(records, tmp_path, Place("v1.0"))
    assert alone.code == "T17.not_converged"


def times(change: Callable[[dict[str, list[Any]]], object], nth: int = 0) -> Any:
    return lambda records: edit(
        records, "generation_times", lambda record: change(record["value"]), nth
    )


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


def give_times_twice(records: list[Record]) -> list[Record]:
    number = line_number(records, "generation_times")
    return [*records[:number], *copy.deepcopy(records[number - 1 :])]


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
    "times twice": ("T3.out_of_turn", "generation_times", 1, give_times_twice),
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
    found = check(records, tmp_path)
    assert code in {finding.code for finding in found}, found
    named = [finding.line for finding in found if finding.code == code]
    if name not in ("generation after the evaluation", "times twice"):
        assert named[0] == line_number(records, key, nth), found
    assert all(finding.hint for finding in found if finding.code == code)


def test_other_weights_are_for_the_open_division(star_images: Definition, tmp_path: Path) -> None:
    opened = generation_records(star_images, division="open")
    records = put(opened, "weights_digest", value="c" * 64)
    assert check(records, tmp_path, Place("v1.0")) == []


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
        place = Place("v1.0", "acme", "box", full.name, full.scale, division, in_result=True)
        found = check(generation_records(full, division=division), tmp_path, place)
        assert [finding.code for finding in found] == expected
