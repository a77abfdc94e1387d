"""A catalogue of logs whose clocks or intervals cannot be true, and of odd ones that are."""

import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks import Place
from cepheid.compliance.finding import Finding
from cepheid.rules import definition
from tests.compliance.builder import (
    Record,
    delay,
    find,
    generation_records,
    line_number,
    line_of,
    put,
    run_records,
    set_clocks,
    stretch,
)
from tests.compliance.checks.test_catalogue import MINI, PLACE, check
from tests.compliance.judging import place_of

LONG = run_records(MINI, blocks=8)
IMAGES = definition.load("galaxy_generation", "mini")
IMAGES_PLACE = place_of(IMAGES)
assert IMAGES.generation is not None
COUNTS = IMAGES.generation.counts
GENERATED = generation_records(IMAGES)
MINUTE_MS = 60_000

Change = Callable[[list[Record]], object]


def find_all(records: list[Record], tmp_path: Path, place: Place = PLACE) -> list[Finding]:
    return check([line_of(record) for record in records], tmp_path / "result_0.txt", place)


def numbers(records: list[Record], key: str) -> list[int]:
    return [number for number, record in enumerate(records) if record["key"] == key]


def wait_before(key: str, minutes: float, nth: int = 0) -> Change:
    return lambda records: delay(records[line_number(records, key, nth) - 1 :], minutes * MINUTE_MS)


def monotonic(compute: Callable[[int], float]) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            record["metadata"]["monotonic_ms"] = compute(record["time_ms"])

    return change


def wait_everywhere(seconds: float) -> Change:
    """As much time between a block and its evaluation, and before the next block."""

    def change(records: list[Record]) -> None:
        for key in ("eval_start", "block_start", "run_stop"):
            for number in numbers(records, key):
                delay(records[number:], seconds * 1000)

    return change


def no_initialisation(records: list[Record]) -> None:
    start, stop = numbers(records, "init_start")[0], numbers(records, "init_stop")[0]
    for record in records[start + 1 : stop + 1]:
        set_clocks(record, records[start])


CLOCKS: dict[str, tuple[str, Change]] = {
    # Principle 1: every interval is bounded on both sides
    "45 minutes between cache_clear and init_start": ("T6.idle", wait_before("init_start", 45)),
    "45 minutes between init_stop and run_start": ("T6.idle", wait_before("run_start", 45)),
    "five minutes between init_stop and run_start": ("T6.idle", wait_before("run_start", 5)),
    "an initialisation without duration": ("T4.no_time", no_initialisation),
    "an evaluation in a fiftieth of the time": (
        "T4.too_fast", stretch("eval_start", 0.02, 5)),
    "the last evaluation in a fiftieth of the time": (
        "T4.too_fast", stretch("eval_start", 0.02, 7)),
    "a block in a twentieth of the time": (
        "T4.too_fast", stretch("block_start", 0.05, 3)),
    "as much time between blocks as in them": ("T4.unaccounted", wait_everywhere(10)),
    "an hour before the second block": ("T4.unaccounted", wait_before("block_start", 60, 1)),
    "an hour after the last evaluation": ("T4.unaccounted", wait_before("run_stop", 60)),
    "an hour between a block and its evaluation": (
        "T4.unaccounted", wait_before("eval_start", 60, 4)),
    "an hour before the first block": ("T4.late_start", wait_before("block_start", 60)),
    "an evaluation in which something was trained": (
        "T4.slow_evaluation", stretch("eval_start", 20, 2)),
    # Principle 2: two clocks are two clocks
    "monotonic_ms equal to time_ms": ("T4.copied_clock", monotonic(float)),
    "monotonic_ms is time_ms in whole numbers": ("T4.copied_clock", monotonic(int)),
    "monotonic_ms since another year": ("T4.copied_clock", monotonic(lambda ms: ms - 1e11)),
    "monotonic_ms half a millisecond from whole ones": (
        "T4.one_clock", monotonic(lambda ms: ms - 1.6e12 + 0.5)),
    "monotonic_ms with one fraction": (
        "T4.one_clock", monotonic(lambda ms: ms - 1.6e12 + 0.4808)),
    "monotonic_ms stretched": (
        "T4.one_clock", monotonic(lambda ms: 5e6 + (ms - LONG[0]["time_ms"]) * 1.0005)),
    "monotonic_ms with noise in the third decimal": (
        "T4.one_clock", monotonic(lambda ms: ms - 1.6e12 + (ms % 7) / 1000)),
}  # fmt: skip
WARNINGS = ("T4.late_start", "T4.slow_evaluation")


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_that_cannot_be_true(name: str, tmp_path: Path) -> None:
    code, change = CLOCKS[name]
    records = copy.deepcopy(LONG)
    change(records)
    found = find_all(records, tmp_path)
    assert [finding.code for finding in found if finding.code != "T4.gap"] == [code], found
    assert found[0].is_error or code in WARNINGS
    assert found[0].hint
    assert found[0].line


def coarse(convert: Callable[[float], int]) -> Change:
    def change(records: list[Record]) -> None:
        for record in records:
            clock = record["metadata"]["monotonic_ms"] + 0.6
            record["metadata"]["monotonic_ms"] = convert(clock)

    return change


def short_evaluations(records: list[Record]) -> None:
    """Evaluations shorter than a millisecond, on clocks in whole milliseconds."""
    for number in range(len(numbers(records, "eval_start"))):
        stretch("eval_start", 0.0, number)(records)
    pairs = zip(numbers(records, "eval_start"), numbers(records, "eval_stop"), strict=True)
    for start, stop in pairs:
        for record in records[start : stop + 1]:
            set_clocks(record, records[start])
    coarse(int)(records)


ODD: dict[str, Change] = {  # more of them are in judge/test_compliant.py
    "monotonic_ms in whole milliseconds": coarse(int),
    "evaluations shorter than a millisecond": short_evaluations,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_clocks_that_are_true(name: str, tmp_path: Path) -> None:
    records = copy.deepcopy(LONG)
    ODD[name](records)
    # So fast an evaluation is worth a warning, whatever its clock.
    assert [f for f in find_all(records, tmp_path) if f.code != "T4.light_evaluation"] == []


def test_whole_milliseconds_that_never_differ_are_a_warning(tmp_path: Path) -> None:
    """One honest log in twenty or so looks like this, because nobody saw the fractions."""
    records = copy.deepcopy(LONG)
    monotonic(lambda ms: ms - LONG[0]["time_ms"] + 7)(records)
    (found,) = find_all(records, tmp_path)
    assert (found.code, found.severity) == ("T4.one_clock", "warning")


def scale_times(factor: float, *counts: int) -> Change:
    """Other times of some numbers of images; the clock of the log stays as it is."""

    def change(records: list[Record]) -> None:
        for record in records:
            if record["metadata"].get("images_count") in counts and record["value"]:
                for times in record["value"].values():
                    times[:] = [factor * time for time in times]

    return change


def scale_generation(factor: float, count: int) -> Change:
    """The same, and the interval is as short as the times."""

    def change(records: list[Record]) -> None:
        stretch("generation_start", factor, COUNTS.index(count))(records)
        scale_times(factor, count)(records)

    return change


def hide_in_one(share: float) -> Change:
    """Shorten all repetitions of one image, and add what is missing to one of them."""

    def change(records: list[Record]) -> None:
        times = find(records, "generation_times")["value"]
        for name, seconds in times.items():
            rest = (1 - share) * sum(seconds)
            times[name] = [share * time for time in seconds]
            times[name][-1] += rest

    return change


GENERATIONS: dict[str, tuple[str, Change]] = {
    "all times halved": ("T24.untimed", scale_times(0.5, *COUNTS)),
    "times a fifth shorter": ("T24.untimed", scale_times(0.8, *COUNTS)),
    "times a twentieth shorter": ("T24.untimed", scale_times(0.95, 1)),
    "only those of the smallest number": ("T24.untimed", scale_times(0.96, COUNTS[0])),
    "only those of the largest number": ("T24.untimed", scale_times(0.96, COUNTS[-1])),
    "the latency of one image divided by 100": ("T24.untimed", scale_times(0.01, 1)),
    "the same, with the interval that holds it": ("T24.growth", scale_generation(0.01, 1)),
    "the largest number in a hundredth of its time": (
        "T24.growth", scale_generation(0.01, COUNTS[-1])),
    "a third of the time in one repetition": ("T24.outlier", hide_in_one(0.66)),
    "ten minutes between two numbers of images": (
        "T4.unaccounted", wait_before("generation_start", 10, 3)),
    "ten minutes before the evaluation": ("T4.unaccounted", wait_before("eval_start", 10)),
    "ten minutes before the first number": ("T4.late_start", wait_before("generation_start", 10)),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATIONS)
def test_times_of_generation_that_cannot_be_true(name: str, tmp_path: Path) -> None:
    code, change = GENERATIONS[name]
    records = copy.deepcopy(GENERATED)
    change(records)
    found = [one for one in find_all(records, tmp_path, IMAGES_PLACE) if one.code != "T4.gap"]
    assert {finding.code for finding in found} == {code}, found
    assert found[0].is_error or code in WARNINGS


def test_honest_times_of_a_busy_machine_are_accepted(tmp_path: Path) -> None:
    records = copy.deepcopy(GENERATED)
    scale_times(0.975, *COUNTS)(records)  # 2.3% lie outside of repetitions in a recorded result
    assert find_all(records, tmp_path, IMAGES_PLACE) == []
    records = copy.deepcopy(GENERATED)  # and a short pause
    event = find(records, "generation_times")
    seconds = event["value"]["decoding_seconds"]
    hiccup = 60 * statistics.median(seconds)
    seconds[17] += hiccup
    delay(records[records.index(event) :], 1000 * hiccup)
    assert find_all(records, tmp_path, IMAGES_PLACE) == []


@pytest.mark.parametrize(
    ("value", "says"), [(-0.5, "sampling_seconds[3] = -0.5"), (None, "sampling_seconds[3] = null")]
)
def test_the_wrong_time_is_named(value: Any, says: str, tmp_path: Path) -> None:
    records = copy.deepcopy(GENERATED)
    find(records, "generation_times")["value"]["sampling_seconds"][3] = value
    (found,) = (one for one in find_all(records, tmp_path, IMAGES_PLACE) if one.is_error)
    assert (found.code, found.got) == ("T24.repetitions", says)


def test_values_are_expected_and_read_as_they_were_meant(tmp_path: Path) -> None:
    for value, codes in ((0.8999999761581421, []), (0.89999997, ["T12.not_allowed"])):
        found = find_all(put(LONG, "opt_adam_beta_1", value=value), tmp_path)
        assert [one.code for one in found] == codes
    records = [record for record in LONG if record["key"] != "run_start"]
    found = [one for one in find_all(records, tmp_path) if one.code == "T2.missing"]
    (expected,) = (one.expected for one in found)
    assert expected == "run_start once, after init_stop, where the clock starts"
    text = [line_of(record) for record in LONG]
    number = numbers(LONG, "implementation")[0]
    text[number] = text[number].replace('"ranks": 1', '"ranks": 1, "nodes": 1' + "0" * 400)
    found = check(text, tmp_path / "result_0.txt")
    assert [one.got[:8] for one in found if one.code == "T5.not_finite"] == ["Infinity"]
