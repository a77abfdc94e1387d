"""Logs that grow: findings when they are certain, none disappears, every way a file can end."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.follow import GrowingLog, check_growing_log, follow_log
from cepheid.compliance.read.log import records
from cepheid.compliance.read.log.reading import Reading
from cepheid.compliance.read.log.runlog import PARTIAL, make_run_log, read
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from tests import assert_refused
from tests.compliance.builder import generation_records, line_number, line_of, run_records
from tests.compliance.checks.log import test_generation as generation
from tests.compliance.checks.test_catalogue import (
    ABORTED,
    ALONE,
    CASES,
    MINI,
    OPEN,
    PLACE,
    RECORDS,
    ROUND,
    Case,
    at,
    drop,
    put,
    text,
)  # fmt: skip

Key = tuple[str, int | None, str]
LATER = {"T1", "T2", "T7", "T12", "T13", "T17"}  # rules that also say what is missing

NEEDS_MORE = {  # what is certain only by a later line than the one that is named
    "clock started before initialisation ended": at("init_stop") + 1,
    "run_stop before run_start": at("eval_stop") + 1,
}
OF_ALL_BLOCKS = ("T4.fast_blocks", "T4.gap", "T4.uneven")  # known only when all are there


def judge_growing_log(lines: list[str], path: Path, place: Place = PLACE) -> dict[Key, int]:
    """The findings of each prefix of a log, with the number of lines after which each was told."""
    reading, told = Reading(), dict[Key, int]()
    for number, line in enumerate(lines, 1):
        reading.read_lines(line.encode("utf-8", "surrogatepass") + b"\n")
        for finding in check_growing_log(make_run_log(path, reading), number, place, ROUND):
            told.setdefault(finding.identity, number)
    return told


LONGER = run_records(MINI, blocks=8)
COMPLIANT = {
    "in a result": (PLACE, [RECORDS, LONGER, ABORTED]),
    "alone": (ALONE, [RECORDS, LONGER]),  # by itself an aborted run is an error
    "open": (OPEN, [run_records(MINI, division="open")]),
}


@pytest.mark.parametrize("where", COMPLIANT)
def test_no_prefix_of_a_compliant_log_has_a_finding(where: str, tmp_path: Path) -> None:
    place, logs = COMPLIANT[where]
    for records_ in logs:
        assert judge_growing_log(text(records_), tmp_path / "result_0.txt", place) == {}


@pytest.mark.parametrize(
    "case",
    [  # every fourth case, and all of them at night
        pytest.param(case, id=case.name, marks=pytest.mark.slow if number % 4 else [])
        for number, case in enumerate(CASES)
    ],
)
def test_a_reported_finding_stays_true(case: Case, tmp_path: Path) -> None:
    """Whatever was told about a prefix is found in the whole log too, on the same line; and what is
    found in the whole log was told as soon as its line was there, unless it is about what lacks."""
    path = tmp_path / "result_0.txt"
    path.write_bytes("".join(f"{x}\n" for x in case.lines).encode("utf-8", "surrogatepass"))
    final = {f.identity for f in check_log(read(path), case.place, ROUND)}
    told = judge_growing_log(case.lines, path, case.place)
    assert told.keys() <= final
    at_run_stop = len(case.lines)
    for finding in final:
        code, line, _ = finding
        rule = code.partition(".")[0]
        if code in OF_ALL_BLOCKS:
            assert finding not in told
            continue
        if finding in told and line is not None and rule not in LATER:
            assert told[finding] in (NEEDS_MORE.get(case.name, line), at_run_stop), "told late"
        if finding not in told:
            assert line is None or line == at_run_stop or rule in LATER, "not told while growing"


def test_a_finding_is_told_at_once(tmp_path: Path) -> None:
    for lines, rule, after in [
        (put("opt_name", value="sgd"), "T12", at("opt_name")),
        (put("opt_name", key="opt_nmae"), "T2", at("opt_name")),
        (drop("code_digest"), "T2", at("run_start")),  # with the record that follows it
        (drop("opt_adam_beta_1"), "T12", at("run_start")),
        (drop("cache_clear"), "T2", at("run_start")),
        (put("seed", time_ms=1), "T4", at("seed")),
        (put("train_samples", value=7), "T10", at("train_samples")),
        (drop("eval_accuracy", 1), "T3", at("eval_accuracy", 1)),
    ]:
        told = judge_growing_log(lines, tmp_path / "result_0.txt")
        found = [(key[0].partition(".")[0], number) for key, number in told.items()]
        assert found == [(rule, after)]


def test_a_repeated_mistake_is_reported_once(tmp_path: Path) -> None:
    """Its count grows; it is the same finding."""
    lines = text([r | {"value": 1} if r["key"] == "eval_stop" else r for r in RECORDS])
    told = judge_growing_log(lines, tmp_path / "result_0.txt")
    assert list(told) == [("T2.value", at("eval_stop"), "error")]


@pytest.fixture
def star_images(star_shape: Definition) -> Definition:
    return definition.load("star_images", "mini")


@pytest.mark.parametrize("place", [generation.PLACE, ALONE], ids=["in a result", "alone"])
def test_no_prefix_of_a_log_of_generation_has_a_finding(
    place: Place, star_images: Definition, tmp_path: Path
) -> None:
    lines = text(generation_records(star_images))
    assert judge_growing_log(lines, tmp_path / "result_0.txt", place) == {}


@pytest.mark.parametrize("name", generation.CASES)
def test_findings_of_generation_stay(name: str, star_images: Definition, tmp_path: Path) -> None:
    code, *_, change = generation.CASES[name]
    lines, path = text(change(generation_records(star_images))), tmp_path / "result_0.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    final = {f.identity for f in check_log(read(path), generation.PLACE, ROUND)}
    assert judge_growing_log(lines, path, generation.PLACE).keys() <= final
    assert code in {key[0] for key in final}


def test_impossible_times_are_reported_at_once(star_images: Definition, tmp_path: Path) -> None:
    """As soon as generation_stop says when they ended."""
    *_, change = generation.CASES["times that the clock has no room for"]
    records_ = change(generation_records(star_images))
    told = judge_growing_log(text(records_), tmp_path / "result_0.txt", generation.PLACE)
    assert list(told.values()) == [line_number(records_, "generation_stop", 1)]


class Writer:
    """Plays the steps of a program that writes a log while somebody follows it."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.said: list[str] = []

    def wait(self, seconds: float) -> bool:
        """Called where ``follow`` would sleep: the next step, and in the end Ctrl-C."""
        if not seconds:
            return False
        if not self.steps:
            return True
        self.steps.pop(0)()
        return False

    def follow(self, path: Path) -> list[Finding]:
        return list(follow_log(path, PLACE, ROUND, self.said.append, self.wait))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("cepheid.compliance.judge.follow.QUIET_SECONDS", 0.0)
    return tmp_path / "result_0.txt"


def append(path: Path, lines: list[str], more: str = "") -> Callable[[], object]:
    def step() -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines) + more)

    return step


GOOD, BAD = text(RECORDS), put("opt_name", value="sgd")


def test_a_log_may_appear_late_and_get_its_name_at_the_end(log: Path) -> None:
    partial = log.with_name(log.name + PARTIAL)
    writer = Writer(
        lambda: None,
        append(partial, BAD[:20]),
        append(partial, BAD[20:]),
        lambda: partial.rename(log),
    )
    found = writer.follow(log)
    assert [(f.rule, f.line, f.path.name) for f in found] == [("T12", at("opt_name"), partial.name)]
    assert [said.split()[0] for said in writer.said] == ["waiting", "following", "the"]
    assert not writer.steps


def test_a_log_that_is_written_in_place(log: Path) -> None:
    writer = Writer(append(log, GOOD[:30]), append(log, GOOD[30:]), lambda: None)
    assert writer.follow(log) == []
    assert len(writer.said) == 2
    assert Writer().follow(log) == []  # now it is complete


def test_half_a_line_is_not_judged(log: Path) -> None:
    rest = [GOOD[20][40:], *GOOD[21:]]
    writer = Writer(append(log, GOOD[:20], GOOD[20][:40]), lambda: None, append(log, rest))
    assert writer.follow(log) == []


def test_following_fails_without_a_log_and_judges_an_interrupted_one(log: Path) -> None:
    assert_refused("no program wrote", Writer(lambda: None).follow, log)
    found = Writer(append(log, GOOD[:40])).follow(log)
    assert [(f.rule, f.line) for f in found] == [("T7", 40)]


def test_a_log_that_is_written_anew(log: Path) -> None:
    """Truncated, as with a shell's `>`: the second run is judged from its first line."""
    writer = Writer(append(log, BAD[:30]), lambda: log.write_text(""), append(log, GOOD))
    found = writer.follow(log)
    assert [f.rule for f in found] == ["T12"], "told, and true of what stood there then"
    assert any("replaced by another log" in said for said in writer.said)


def replace(log: Path) -> None:
    other = log.with_suffix(".new")
    append(other, GOOD)()
    os.replace(other, log)


@pytest.mark.parametrize(
    ("change", "rest", "says"),
    [
        (lambda log: log.rename(log.with_suffix(".1")), GOOD, "was removed"),
        (replace, [], "replaced by another log"),
    ],
    ids=["moved away by rotation", "replaced by another file"],
)
def test_a_log_that_another_one_follows(
    change: Callable[[Path], object], rest: list[str], says: str, log: Path
) -> None:
    writer = Writer(append(log, GOOD[:30]), lambda: change(log), append(log, rest))
    assert writer.follow(log) == []
    assert any(says in said for said in writer.said)


def test_only_what_is_new_is_read(log: Path) -> None:
    growing = GrowingLog(log)
    append(log, GOOD[:30])()
    assert growing.read_new() == "opened"
    assert growing.read_new() == "grown"
    before = growing.reading.events[0]
    append(log, GOOD[30:])()
    assert growing.read_new() == "grown"
    assert growing.reading.events[0] is before
    assert growing.read_new() == "quiet"
    assert growing.reading.lines_read == len(GOOD)
    growing.close()


def test_a_line_without_end_takes_no_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LINE_BYTES_MAX", 1000)
    log.write_bytes(line_of(RECORDS[0]).encode() + b"\n" + b"x" * 50_000)
    growing = GrowingLog(log)
    while growing.read_new() != "quiet":
        assert len(growing._rest) <= 1001
    append(log, ["", line_of(RECORDS[1])])()
    growing.read_new()
    assert [event.line for event in growing.reading.events] == [1, 3]
    assert [(p.line, p.kind) for p in growing.reading.problems] == [(2, "text")]
    growing.close()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("suffix", ["", PARTIAL])
def test_only_files_are_followed(make: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    """Nothing can be read from a place in a pipe: that once ended in a traceback."""
    make(tmp_path / f"result_0.txt{suffix}")
    follow = follow_log(tmp_path / "result_0.txt", PLACE, ROUND, print, lambda seconds: True)
    assert_refused("not a regular file", list, follow)
