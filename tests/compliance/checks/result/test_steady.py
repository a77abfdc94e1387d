"""Equal work takes equal time, on one machine: within a run and between the runs of a result."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.compliance.checks.result.steady import (
    RUNS_RATIO_MAX,
    check_steadiness,
    measure_pace_ms,
)
from cepheid.compliance.checks.time import pace
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition
from tests.compliance.builder import (
    Record,
    delay,
    edit,
    find,
    line_number,
    run_records,
    stretch,
    stretch_all,
    write_log,
    write_result,
)
from tests.compliance.judging import find_all

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
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


CHANGES: dict[str, tuple[Callable[[list[Record]], None], str]] = {
    "a block of a busy machine": (stretch("block_start", 5.0, 2), ""),
    "an uneven block": (stretch("block_start", 7.0, 2), "T4.uneven"),
    "a first block that compiles": (stretch("block_start", 9.0, 0), ""),
    "a slow run": (stretch_all("block_start", 3.0), ""),
    "a run of another machine": (stretch_all("block_start", 5.0), "T19.uneven"),
    "evaluations of a tenth of the set": (stretch_all("eval_start", 0.1), "T4.light_evaluation"),
    "restarted before the run": (lambda r: delay(r, 0, -LAST * 1e7 - 5e6 + 1e3), ""),
    "another machine": (lambda r: delay(r, 0, 90 * HOUR_MS), "T19.other_boot"),
    "a clock that was slewed": (lambda r: delay(r, 0, 20_000), ""),
    "1970": (lambda r: delay(r, -52 * YEAR_MS, 0), "T4.date"),
    "2099": (lambda r: delay(r, 75 * YEAR_MS, 0), "T4.date"),
    "a machine of its own": (use(0.49, 0.0, 0.5), ""),
    "a desktop": (use(0.42, 0.01, 0.5), ""),
    "another program on one of two cores": (use(0.02, 0.0, 0.5), "T19.busy"),
    "a host that gives time to others": (use(0.3, 0.2, 0.5), "T19.busy"),
    "shares that are none": (use(7.0, 0.0, 0.5), "T19.machine_use"),
    "initialised early": (begin_early, "T19.early_init"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_odd_times_are_a_warning_and_busy_machines_are_not(name: str, tmp_path: Path) -> None:
    change, code = CHANGES[name]
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
