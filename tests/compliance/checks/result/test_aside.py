"""Logs of interrupted runs are judged as if they counted; what they say proves nothing."""

import json
from pathlib import Path

import pytest

from cepheid.compliance.read import package
from cepheid.rules import definition
from tests.compliance.builder import (
    Record,
    generation_records,
    line_number,
    put,
    put_metadata,
    run_records,
    write_log,
    write_result,
)
from tests.compliance.judging import find_all, find_errors, judge_folder

pytestmark = pytest.mark.usefixtures("fast_reference")
MINI = definition.load("galaxy_shape", "mini")
RECORDS = run_records(MINI)
IMAGES = definition.load("galaxy_generation", "mini")


def cut(records: list[Record], lines: int) -> list[Record]:
    return records[:-lines]


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (run_records(MINI, 9), '"success"'),
        (run_records(MINI, 9, blocks=1000, converged=False), '"aborted"'),
    ],
    ids=["reached the targets", "spent its budget"],
)
def test_a_completed_run_was_set_aside(records: list[Record], says: str, tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    write_log(folder / "interrupted_result_2_0.txt", records)
    (found,) = find_errors(tmp_path)
    assert (found.code, found.path) == ("T15.set_aside", folder / "interrupted_result_2_0.txt")
    assert found.line == line_number(records, "run_stop")
    assert found.message == "a completed run was set aside"
    assert says in found.got


def test_interrupted_runs_are_only_noted(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    write_log(folder / "interrupted_0.txt", run_records(MINI, 2, blocks=2, converged=False))
    write_log(folder / "interrupted_1.txt", RECORDS[: line_number(RECORDS, "eval_start", 2)])
    write_log(folder / "interrupted_3.txt", RECORDS[: line_number(RECORDS, "seed")])
    (found,) = find_all(tmp_path)
    assert (found.code, found.severity) == ("S1.interrupted", "note")
    assert package.read(tmp_path).logs == MINI.runs.required


SET_ASIDE: dict[str, tuple[str, list[Record]]] = {
    "only run_stop is cut off": ("T15.set_aside", cut(run_records(MINI, 2), 1)),
    "run_stop and eval_stop are cut off": ("T15.set_aside", cut(run_records(MINI, 2), 2)),
    "a run that failed after the targets held": (
        "T15.set_aside", [*run_records(MINI, 2)[:-1], run_records(MINI, 2, converged=False)[-1]]),
    "a spent budget without run_stop": (
        "T15.set_aside", cut(run_records(MINI, 2, blocks=1000, converged=False), 1)),
    "a run that was slower than its repeat": (
        "T15.set_aside", cut(run_records(MINI, 2, blocks=5, converged=False), 1)),
    "a run that diverged": (
        "T15.set_aside", put_metadata(run_records(MINI, 2, blocks=2, converged=False), "run_stop",
                                      reason="the loss is not finite")),
    "another seed, not repeated": (
        "T15.other_seed", cut(run_records(MINI, 17, blocks=2, converged=False), 1)),
    "another given seed, not repeated": (
        "T15.other_seed", put(run_records(MINI, 2, blocks=2, converged=False), "seed", value=4711)),
}  # fmt: skip


@pytest.mark.parametrize("name", SET_ASIDE)
def test_a_run_that_was_set_aside_is_judged_as_if_it_counted(name: str, tmp_path: Path) -> None:
    code, records = SET_ASIDE[name]
    write_log(write_result(tmp_path, MINI) / "interrupted_result_2_0.txt", records)
    (found,) = find_errors(tmp_path)
    assert (found.code, found.path.name) == (code, "interrupted_result_2_0.txt")
    assert found.got
    assert found.hint


def test_generation_without_run_stop_was_completed(tmp_path: Path) -> None:
    folder = write_result(tmp_path, IMAGES)
    write_log(folder / "interrupted_0.txt", cut(generation_records(IMAGES, 1), 1))
    (found,) = find_errors(tmp_path)
    assert found.code == "T15.set_aside"


def stopped(index: int, blocks: int = 1) -> list[Record]:
    return cut(run_records(MINI, index, blocks=blocks, converged=False), 1)


def damage(records: list[Record]) -> bytes:
    lines = [f":::MLLOG {json.dumps(record)}" for record in records]
    lines[line_number(records, "eval_accuracy") - 1] = ":::MLLOG {what, is this?}"
    return "\n".join(lines).encode() + b"\n"


OTHER_CODE = put(stopped(2), "code_digest", value="0" * 64)
OTHER_DATA = put(run_records(MINI, 2), "data_read", value="0" * 64)
EXCUSED: dict[str, tuple[list[list[Record] | bytes], list[str]]] = {
    "other data, says the log of a run that succeeded": ([OTHER_DATA], ["the data that it read"]),
    "data that were not read": (
        [put(run_records(MINI, 2), "data_read", value="not digested: the disk is gone")],
        ["the data that it read"]),
    "an empty log": ([b""], ["no record"]),
    "only a line that was cut off": ([b":::MLLOG {\xff\0"], ["no record"]),
    "other code": ([OTHER_CODE], ["other code"]),
    "other code with a seed of none": (
        [put(stopped(17), "code_digest", value="0" * 64)], ["other code"]),
    "no code": (
        [[r for r in stopped(2) if r["key"] != "code_digest"]], ["other code"]),
    "no seed": ([[r for r in stopped(2) if r["key"] != "seed"]], ["no seed"]),
    "damaged records": ([damage(stopped(2, 2))], ["cannot be read"]),
    "three interruptions of one seed": ([stopped(2, 1 + k % 2) for k in range(3)], ["number 3"]),
    "six of two seeds": ([stopped(k % 2) for k in range(6)], ["number 3", "number 3"]),
    "four of one seed": ([stopped(1)] * 4, ["number 3", "number 4"]),
    "different kinds together": ([OTHER_CODE, b"", OTHER_DATA],
                                 ["other code", "no record", "the data"]),
}  # fmt: skip


@pytest.mark.parametrize("name", EXCUSED)
def test_what_excuses_a_run_is_not_proven_by_its_own_log(name: str, tmp_path: Path) -> None:
    logs, says = EXCUSED[name]
    folder = write_result(tmp_path, MINI)
    for number, log in enumerate(logs):
        path = folder / f"interrupted_result_2_{number}.txt"
        path.write_bytes(log) if isinstance(log, bytes) else write_log(path, log)
    found = [finding for finding in find_all(tmp_path) if finding.code != "S1.interrupted"]
    assert {(finding.code, finding.severity) for finding in found} == {("T15.excused", "warning")}
    assert len(found) == len(says)
    assert all(text in finding.message for text, finding in zip(says, found, strict=True))
    (result,) = judge_folder(tmp_path).results
    assert {finding.code for finding in result.findings} >= {"T15.excused"}


HONEST: dict[str, list[list[Record]]] = {
    "killed early, and before the clock": [
        stopped(3, 2),
        stopped(3)[: line_number(RECORDS, "seed")],
    ],
    "preempted twice with each seed": [stopped(index) for index in range(5) for _ in range(2)],
    "three starts that failed before the clock": [
        stopped(1)[: line_number(RECORDS, "init_stop")] for _ in range(3)
    ],
    "other code, before the clock": [OTHER_CODE[: line_number(OTHER_CODE, "init_stop")]],
    "killed between two evaluations": [stopped(4, 2)[:-2], stopped(4, 2)[:-5]],
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_interruptions_are_notes(name: str, tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    for number, records in enumerate(HONEST[name]):
        write_log(folder / f"interrupted_{number}.txt", records)
    assert [finding.code for finding in find_all(tmp_path)] == ["S1.interrupted"]
