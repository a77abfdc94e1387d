"""Interrupted runs are judged as if they counted; equal work takes equal time on one machine."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.compliance.checks.result.steady import (
    RUNS_RATIO_MAX,
    check_steadiness,
    measure_pace_ms,
)
from cepheid.compliance.checks.time import pace
from cepheid.compliance.read import package
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition
from tests.compliance.builder import (
    Record,
    delay,
    edit,
    find,
    generation_records,
    line_number,
    put,
    put_metadata,
    run_records,
    stretch,
    stretch_all,
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


def test_a_completed_run_was_set_aside(tmp_path: Path) -> None:
    """It reached the targets, or spent its budget."""
    path = write_result(tmp_path, MINI) / "interrupted_result_2_0.txt"
    spent = run_records(MINI, 9, blocks=1000, converged=False)
    for records, says in ((run_records(MINI, 9), '"success"'), (spent, '"aborted"')):
        write_log(path, records)
        (found,) = find_errors(tmp_path)
        assert (found.code, found.path) == ("T15.set_aside", path)
        assert found.line == line_number(records, "run_stop")
        assert found.message == "a completed run was set aside"
        assert says in found.got


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


def before(index: int, key: str, nth: int = 0, blocks: int = 1) -> list[Record]:
    """A log that ends before the nth record of a key: the machine was taken away."""
    records = stopped(index, blocks)
    return records[: line_number(records, key, nth) - 1]


HONEST: dict[str, list[list[Record]]] = {
    "killed early, and before the clock": [stopped(3, 2), before(3, "seed")],
    "preempted twice with each seed": [stopped(index) for index in range(5) for _ in range(2)],
    "preempted in training, and between evaluation and block": [
        before(1, "block_stop", 1, 3), before(1, "block_start", 1, 3)],
    "preempted in an evaluation": [before(0, "eval_stop"), before(0, "eval_accuracy", 2, 3)],
    "stopped with a reason": [run_records(MINI, 2, blocks=2, converged=False)],
    "three starts that failed before the clock": [before(1, "run_start")] * 3,
    "other code, before the clock": [OTHER_CODE[: line_number(OTHER_CODE, "init_stop")]],
    "killed between two evaluations": [stopped(4, 2)[:-2], stopped(4, 2)[:-5]],
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_interruptions_are_notes(name: str, tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    for number, records in enumerate(HONEST[name]):
        write_log(folder / f"interrupted_{number}.txt", records)
    (found,) = find_all(tmp_path)
    assert (found.code, found.severity) == ("S1.interrupted", "note")
    assert package.read(tmp_path).logs == MINI.runs.required


SUBMISSIONS = Path(__file__).resolve().parents[4] / "submissions"
LAST = MINI.runs.required - 1
HOUR_MS = 3_600_000.0
YEAR_MS = 365.25 * 24 * HOUR_MS


def begin_early(records: list[Record]) -> None:
    """Initialise while the run before is still timed, and start a second after its end."""
    before = run_records(MINI, LAST - 1, blocks=5)
    stop, start = find(before, "run_stop"), find(records, "run_start")
    delay(records, stop["time_ms"] + 1000 - start["time_ms"])


def use(idle: float, stolen: float, own: float) -> Callable[[list[Record]], None]:
    def change(records: list[Record]) -> None:
        stop = line_number(records, "run_stop")
        shares = {"idle_share": idle, "stolen_share": stolen, "own_share": own}
        event = {"key": "machine_use", "value": {"load_before": 0.5, "processors": 2, **shares}}
        records.insert(stop, {**records[stop], **event})

    return change


ODD_TIMES: dict[str, tuple[Callable[[list[Record]], None], str]] = {
    "an uneven block": (stretch("block_start", 7.0, 2), "T4.uneven"),
    "a first block that compiles": (stretch("block_start", 9.0, 0), ""),
    "a run of another machine": (stretch_all("block_start", 5.0), "T19.uneven"),
    "evaluations of a tenth of the set": (stretch_all("eval_start", 0.1), "T4.light_evaluation"),
    "another machine": (lambda r: delay(r, 0, 90 * HOUR_MS), "T19.other_boot"),
    "1970": (lambda r: delay(r, -52 * YEAR_MS, 0), "T4.date"),
    "2099": (lambda r: delay(r, 75 * YEAR_MS, 0), "T4.date"),
    "a machine of its own": (use(0.49, 0.0, 0.5), ""),
    "a desktop": (use(0.42, 0.01, 0.5), ""),
    "another program on one of two cores": (use(0.02, 0.0, 0.5), "T19.busy"),
    "a host that gives time to others": (use(0.3, 0.2, 0.5), "T19.busy"),
    "shares that are none": (use(7.0, 0.0, 0.5), "T19.machine_use"),
    "initialised early": (begin_early, "T19.early_init"),
}


@pytest.mark.parametrize("name", ODD_TIMES)
def test_odd_times_are_a_warning_and_busy_machines_are_not(name: str, tmp_path: Path) -> None:
    change, code = ODD_TIMES[name]
    folder = write_result(tmp_path / "out", MINI, blocks=lambda index: 5)
    records = run_records(MINI, LAST, blocks=5)
    change(records)
    write_log(folder / f"result_{LAST}.txt", records)
    found = find_all(folder)
    assert [each for each in found if each.is_error] == []
    codes = {each.code for each in found if each.severity == "warning"}
    assert code in codes if code else not codes, found


@pytest.mark.parametrize(("stolen", "codes"), [(0.0, []), (0.3, ["T19.busy"])])
def test_other_ranks_are_no_other_work(stolen: float, codes: list[str], tmp_path: Path) -> None:
    records = edit(run_records(MINI), "implementation", lambda r: r["value"].update(ranks=4))
    use(0.0, stolen, 0.2)(records)
    run = runlog.read(write_log(tmp_path / "result_0.txt", records))
    assert [finding.code for finding in check_steadiness([run])] == codes


def ratio(values: list[float]) -> float:
    return max(values) / min(values) if values else 1.0


def test_the_limits_are_at_least_twice_what_the_recorded_results_show() -> None:
    blocks, evaluations = [1.0], [1.0]
    runs: dict[Path, list[float]] = {}
    for path in sorted(SUBMISSIONS.glob("*/results/*/*/result_*.txt")):
        run = runlog.read(path)
        pairs = pace.list_intervals(run)
        blocks.append(ratio([ms for ms, _ in pace.measure_blocks(pairs)[1:]]))
        times = [pace.measure_ms(*pair) for pair in pairs if pair[0].key == "eval_start"]
        evaluations.append(ratio(times[1:]))
        if usual := measure_pace_ms(run):
            runs.setdefault(path.parent, []).append(usual)
    assert 2 * max(blocks) <= pace.BLOCKS_RATIO_MAX
    assert 2 * max(evaluations) <= pace.EVALUATIONS_RATIO_MAX
    assert 1.3 * max(map(ratio, runs.values())) <= RUNS_RATIO_MAX
