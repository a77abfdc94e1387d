"""A number of a run is shown only where the rules that vouch for it found no error."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.summary import ResultSummary, RunSummary
from cepheid.compliance.score.standing import VOUCHED_BY, is_vouched_for, withhold
from cepheid.leaderboard.build import make_site_files
from cepheid.rules.definition import Definition
from tests.compliance.builder import (
    power_lines,
    put,
    run_records,
    write_log,
    write_power,
    write_result,
)
from tests.compliance.judging import make_site

FOLDER = Path("results/box/star_shape-mini-closed")
RUNS = tuple(
    RunSummary(
        FOLDER / f"result_{number}.txt", number, "success", 60.0,
        samples=100, crossing=90.0, trained=100, joules=5.0,
        generation={"images_per_second": 2.0}, update_time_ratio=1.5,
    )
    for number in range(3)
)  # fmt: skip


def withhold_after(code: str, path: Path, severity: str = "error") -> list[set[str]]:
    """Return the names of the numbers that each run loses."""
    found = Finding(code, severity, path, None, "wrong")  # type: ignore[arg-type]
    left = withhold(ResultSummary(RUNS), [found]).runs

    def list_known(run: RunSummary) -> set[str]:
        return {name for name in VOUCHED_BY if getattr(run, name) not in (None, {})}

    return [list_known(run) - list_known(now) for run, now in zip(RUNS, left, strict=True)]


TIMED = {"seconds", "generation", "update_time_ratio", "joules"}
LOST: dict[str, tuple[str, str, list[set[str]]]] = {
    "of a power log, the energy": ("T23.gap", "power_1.csv", [set(), {"joules"}, set()]),
    "of a folder, that of all its runs": ("T23.missing", "", [{"joules"}] * 3),
    "of a clock, all that was timed": ("T4.backwards", "result_0.txt", [TIMED, set(), set()]),
    "of judging, everything": (
        "S15.not_judged", "result_2.txt", [set(), set(), VOUCHED_BY.keys() - {"pace"}]),
    "of a hyperparameter, nothing": ("T12.not_allowed", "", [set()] * 3),
    "of a description, nothing": ("S2.schema", "", [set()] * 3),
}  # fmt: skip


@pytest.mark.parametrize("error", LOST)
def test_an_error_takes_the_numbers_that_its_rule_vouches_for(error: str) -> None:
    code, name, lost = LOST[error]
    assert withhold_after(code, FOLDER / name) == lost


def test_a_warning_withholds_no_number() -> None:
    """So a waiver does not, either: it makes a warning of an error."""
    assert withhold_after("T10.samples", FOLDER, "warning") == [set()] * 3
    assert is_vouched_for("samples", [Finding("T10.samples", "warning", FOLDER, 1, "few")])
    assert not is_vouched_for("samples", [Finding("T10.samples", "error", FOLDER, 1, "few")])


def shift_power(lines: list[str], by_ms: float) -> list[str]:
    rows = [line.partition(",") for line in lines[2:]]
    return lines[:2] + [f"{float(time) + by_ms},{power}" for time, _, power in rows]


BREACHES: dict[str, tuple[Callable[[Path, Definition], object], set[str]]] = {
    "the power log begins after run_stop": (
        lambda folder, mini: (folder / "power_1.csv").write_text(
            "\n".join(shift_power(power_lines(run_records(mini, 1), {"node0": 900.0}), 1e6))),
        {"energy_joules"}),
    "an evaluation is late": (
        lambda folder, mini: write_log(folder / "result_1.txt", [
            record for record in run_records(mini, 1)
            if record["metadata"].get("samples_count") not in (50, 100)]),
        {"samples_to_target"}),
    "the log is for another place": (
        lambda folder, mini: write_log(
            folder / "result_1.txt", put(run_records(mini, 1), "submission_org", value="bolt")),
        {"minutes", "samples_to_target", "energy_joules"}),
}  # fmt: skip


@pytest.mark.parametrize("breach", BREACHES)
def test_the_site_shows_no_number_without_a_rule(breach: str, star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    for index in range(5):
        write_power(folder, run_records(star_shape, index), index, {"node0": 900.0})
    write, lost = BREACHES[breach]
    write(folder, star_shape)
    files = dict(make_site_files(make_site()))
    (result,) = json.loads(files["results.json"])["results"]
    assert result["verdict"] == "rejected"
    names = ("minutes", "samples_to_target", "energy_joules")
    missing = [{name for name in names if run[name] is None} for run in result["run_logs"]]
    assert lost <= missing[1]
    assert missing[0] == set()
