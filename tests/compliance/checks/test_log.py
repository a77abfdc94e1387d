"""Logs by themselves: compliant ones raise nothing, and clocks that cannot be true are found."""

import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.checks.log.hyperparameters import check_closed_division
from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition
from tests.compliance.builder import (
    Record,
    delay,
    find,
    generation_records,
    line_number,
    line_of,
    put,
    put_metadata,
    run_records,
    set_clocks,
    stretch,
    write_log,
)
from tests.compliance.checks.test_catalogue import ABORTED, MINI, PLACE, RECORDS, ROUND, check
from tests.compliance.judging import check_records, place_of
from tests.compliance.small import STAR_SHAPE

PAIRS = [(name, scale) for name in definition.names() for scale in definition.scales(name)]


@pytest.mark.parametrize(("name", "scale"), PAIRS)
@pytest.mark.parametrize("division", ["closed", "open"])
def test_a_compliant_log_is_clean(name: str, scale: str, division: str, tmp_path: Path) -> None:
    judged_by = definition.load(name, scale)
    has_weights = judged_by.kind == "train" or "weights_digest" in judged_by.model
    if division == "closed" and not has_weights:
        pytest.skip("nobody has published weights at this scale, so nothing can be closed")
    records = run_records(judged_by, division=division)
    assert check_records(records, tmp_path, place_of(judged_by, division)) == []
    assert check_records(records, tmp_path) == []


def test_records_are_read_amid_other_output_and_open_ones_may_be_fewer(tmp_path: Path) -> None:
    lines = [entry for record in RECORDS for entry in ("loss 0.3 é", line_of(record), "")]
    path = tmp_path / "result_0.txt"
    path.write_text("\r\n".join(lines), encoding="utf-8")  # and no line feed at the end
    assert check_log(runlog.read(path), PLACE, ROUND) == []
    records = run_records(MINI, division="open")
    kept = [record for record in records if not record["key"].startswith("opt_adam")]
    assert check_records(kept, tmp_path) == []


@pytest.mark.parametrize("last", ["block_start", "block_stop", "eval_start"])
def test_a_run_may_fail_within_a_block(last: str, tmp_path: Path) -> None:
    failed = [*ABORTED[: line_number(ABORTED, last)], ABORTED[-1]]
    counted = [r["metadata"]["samples_count"] for r in failed if r["key"] == "block_stop"]
    stop = put_metadata(failed, "run_stop", samples_count=max(counted, default=0))
    assert check_records(stop, tmp_path, PLACE) == []
    assert [finding.rule for finding in check_records(stop, tmp_path)] == ["T17"]


@pytest.mark.parametrize("lines", [1, 5, 12, 20, 30])
def test_a_log_cut_off_anywhere_gives_few_findings(lines: int, tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(map(line_of, RECORDS[:lines]))[:-10], encoding="utf-8")
    found = check_log(runlog.read(path), PLACE, ROUND)
    assert [(finding.rule, finding.line) for finding in found] == [("T1", lines)]


def test_a_hyperparameter_that_depends_on_the_batch_size(tmp_path: Path) -> None:
    """No definition has such a relation yet: the check is asked with one that has."""
    hyperparameters = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    hyperparameters["opt_base_learning_rate"]["closed"]["at_most"] = {"global_batch_size": 1e-4}
    judged_by = definition.parse({**STAR_SHAPE, "hyperparameters": hyperparameters}, "mini")
    records = run_records(judged_by)

    def check(logged: list[Record]) -> list[Finding]:
        run = runlog.read(write_log(tmp_path / "result_0.txt", logged))
        return list(check_closed_division(run, judged_by, Place("v1.0", division="closed")))

    assert check(records) == []
    (found,) = check(put(records, "global_batch_size", value=5))
    assert found.line == line_number(records, "opt_base_learning_rate")
    assert found.message.startswith(
        "opt_base_learning_rate must be at most 0.0001 × global_batch_size, that is 0.0005"
    )
    assert found.expected == "from 1e-06 to 1, at most 0.0001 × global_batch_size"


def test_a_rule_has_one_check() -> None:
    with pytest.raises(ValueError, match="T8 has a check already"):
        rule("T8", Needs.RECORDS)(lambda run, place: iter(()))


def test_evaluations_follow_the_offset(tmp_path: Path) -> None:
    """In both divisions."""
    full = definition.load("resnet50", "full")

    def find(offset: int, logged: int, division: str) -> list[Finding]:
        asked = {"eval_offset_epochs": offset}
        records = run_records(full, division=division, hyperparameters=asked)
        records = put(records, "eval_offset_epochs", value=logged)
        found = check_records(records, tmp_path, place_of(full, division))
        return [finding for finding in found if finding.is_error]

    assert not any(find(offset, offset, "closed") for offset in range(4))
    assert [found.code for found in find(1, 2, "closed")] == ["T8.early"]
    (found,) = find(5, 5, "open")
    assert found.code == "T8.offset"
    assert "eval_offset_epochs" in found.message


LONG = run_records(MINI, blocks=8)
IMAGES = definition.load("galaxy_generation", "mini")
IMAGES_PLACE = place_of(IMAGES)
assert IMAGES.generation is not None
COUNTS = IMAGES.generation.counts
GENERATED = generation_records(IMAGES)

Change = Callable[[list[Record]], object]


def find_all(records: list[Record], tmp_path: Path, place: Place = PLACE) -> list[Finding]:
    return check([line_of(record) for record in records], tmp_path / "result_0.txt", place)


def numbers(records: list[Record], key: str) -> list[int]:
    return [number for number, record in enumerate(records) if record["key"] == key]


def wait_before(key: str, minutes: float, nth: int = 0) -> Change:
    return lambda records: delay(records[line_number(records, key, nth) - 1 :], minutes * 60_000)


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
