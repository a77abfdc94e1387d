"""Published results of MLPerf: their folders, scores and verdicts.

The real logs lie beside the checkout, not in it; tests that need them are skipped elsewhere.
"""

import csv
import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import pytest

from cepheid.compliance.finding import has_error
from cepheid.compliance.score.standing import score_published
from cepheid.leaderboard.rows.data import write_json
from cepheid.leaderboard.rows.entry import Entry, list_rows
from cepheid.rules import rounds
from cepheid.tools.console.tables import write_table
from tests.checkout import PUBLISHED_LOGS, needs_published_logs
from tests.compliance.asserting import require
from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import cosmoflow_20, gnmt_06, mll_lines, mllog_lines, resnet_40, write
from tests.compliance.judging import judge_as_mlperf

judge_published = partial(judge_as_mlperf, as_published=True)


def rows(path: Path, round_name: str) -> list[Entry]:
    return list_rows(judge_published(path, round_name).results)


@cache
def load_rows(round_name: str) -> dict[str, Entry]:
    found = rows(PUBLISHED_LOGS / round_name, round_name)
    return {str(row.judged.folder.path.relative_to(PUBLISHED_LOGS)): row for row in found}


def read_expected(name: str) -> list[dict[str, str]]:
    if not PUBLISHED_LOGS.is_dir():
        return []
    return list(csv.DictReader((PUBLISHED_LOGS / name).open(encoding="utf-8")))


@needs_published_logs
@pytest.mark.parametrize(
    "row", read_expected("expected_scores.csv"), ids=lambda row: row["results_folder"]
)
def test_published_scores(row: dict[str, str]) -> None:
    found = load_rows(row["results_folder"].split("/")[0])[row["results_folder"]]
    assert found.standing.score is not None
    published = pytest.approx(float(row["published_minutes"]), abs=0.001, rel=0)
    assert found.standing.score.main.mean == published
    assert found.judged.summary.scaling == float(row["scaling_factor"])
    if found.judged.of_mlcommons:  # what --write-scaling writes
        assert found.judged.of_mlcommons.factor == pytest.approx(float(row["scaling_factor"]))
    assert found.counts.made == found.counts.required == int(row["runs"])


@needs_published_logs
@pytest.mark.parametrize("row", read_expected("expected_runs.csv"), ids=lambda row: row["log"])
def test_published_logs(row: dict[str, str]) -> None:
    """Time, status and verdict of each log by itself; ours always answers, also with FAILED."""
    judgement = judge_published(PUBLISHED_LOGS / row["log"], row["log"].split("/")[0])
    run = judgement.results[0].runs[0]
    assert (run.status or "") == row["status"]
    if row["seconds_run_start_to_run_stop"]:
        seconds = float(row["seconds_run_start_to_run_stop"])
        assert run.seconds == pytest.approx(seconds, abs=0.0006, rel=0)
    else:
        assert run.seconds is None
    verdict = "FAILED" if has_error(judgement.findings) else "SUCCESS"
    peers = row["mlperf_logging_4.1.68_verdict"]
    assert verdict == ("FAILED" if peers == "CRASH" else peers)


@needs_published_logs
def test_no_integrity_rule_fires_on_published_v40_logs_alone() -> None:
    for row in load_rows("mlperf-training-4.0").values():
        assert {finding.rule for finding in row.findings} <= {"M4", "T17"}
        assert row.standing.verdict == "pass"


def write_runs(
    folder: Path, times_ms: Sequence[int | None], raw_ms: int = 9_000_000
) -> dict[str, object]:
    """ResNet-50 runs with these times beside a fixed one; None: aborted. The only row as JSON."""
    for index, time_ms in enumerate(times_ms):
        status = "success" if time_ms is not None else "aborted"
        entries = resnet_40(index, status=status, epoch_ms=time_ms or raw_ms)
        write(folder / f"result_{index}.txt", mllog_lines(entries, index))
    found = json.loads(write_json(rows(folder, "mlperf-training-4.0")))
    assert len(found) == 1
    return dict(found[0])


def test_an_aborted_run_counts_as_the_slowest_whatever_its_time(tmp_path: Path) -> None:
    times = [60_000, 62_000, None, 64_000, 66_000]
    quick = write_runs(tmp_path / "quick", times, raw_ms=1_000)
    late = write_runs(tmp_path / "late", times, raw_ms=99_000_000)
    assert quick["score_minutes"] == late["score_minutes"]
    assert quick["converged"] == 4
    assert quick["verdict"] == "pass"
    slowest = write_runs(tmp_path / "slowest", [60_000, 62_000, 990_000, 64_000, 66_000])
    assert quick["score_minutes"] == pytest.approx(slowest["score_minutes"], abs=1e-4)


@pytest.mark.parametrize("last", [[None, None], [66_000]], ids=["two aborted", "one too few"])
def test_two_aborted_runs_or_too_few_leave_no_score(last: list[int | None], tmp_path: Path) -> None:
    row = write_runs(tmp_path, [60_000, 61_000, 64_000, *last])
    assert (row["score_minutes"], row["verdict"]) == (None, "fail")


def test_drops_are_those_of_the_benchmark(tmp_path: Path) -> None:
    unet = require(rounds.load("mlperf-training-4.0").benchmark("unet3d"))
    for index in range(40):
        status = "aborted" if index < 4 else "success"
        entries = resnet_40(index, status=status, epoch_ms=10_000 + 10 * index)
        write(tmp_path / f"result_{index}.txt", mllog_lines(entries, index))
    summary = judge_published(tmp_path, "mlperf-training-4.0").results[0].summary
    found = require(score_published(summary, unet))
    kept = [run.seconds for run in summary.runs[8:]]  # four aborted, the four fastest are dropped
    assert found.main.mean == pytest.approx(sum(filter(None, kept)) / len(kept) / 60)


def test_an_error_does_not_withhold_a_published_score(tmp_path: Path) -> None:
    submit(tmp_path, [resnet_40(index)[1:] for index in range(5)])  # without submission_benchmark
    (row,) = rows(tmp_path, "mlperf-training-4.0")
    assert row.standing.verdict == "fail"
    assert row.has_score  # the folder says what it is a result of
    assert row.names.benchmark == "resnet"


@pytest.mark.parametrize(
    "part", ["", "acme", "acme/results", "acme/results/box", "acme/results/box/resnet"]
)
def test_any_part_of_a_tree_can_be_judged(part: str, tmp_path: Path) -> None:
    submit(tmp_path, [resnet_40(index) for index in range(5)])
    (row,) = rows(tmp_path / part, "mlperf-training-4.0")
    assert (row.names.submitter, row.names.system, row.names.division) == ("acme", "box", "closed")
    assert (row.names.benchmark, row.names.scale, row.hardware.accelerators) == ("resnet", None, 16)
    assert row.standing.verdict == "pass"


def test_a_log_has_the_place_of_its_folder_and_links_are_not_followed(tmp_path: Path) -> None:
    folder = submit(tmp_path, [resnet_40(index) for index in range(5)])
    judgement = judge_published(folder / "result_3.txt", "mlperf-training-4.0")
    assert judgement.logs == 1
    assert judgement.results[0].place.submitter == "acme"
    assert judgement.findings == ()
    folder = submit(tmp_path, [resnet_40(index) for index in range(5)])
    (folder.parent / "other").symlink_to(folder)
    (folder / "result_9.txt").symlink_to(folder / "result_0.txt")
    judgement = judge_published(tmp_path, "mlperf-training-4.0")
    assert judgement.logs == 5
    assert [finding.rule for finding in judgement.findings] == ["S5"]


@pytest.mark.parametrize("system", ["The Box", "box"])
def test_a_description_may_have_another_name_than_the_folder(system: str, tmp_path: Path) -> None:
    submit(tmp_path, [resnet_40(k) for k in range(5)], system=system, described="BOX")
    (row,) = rows(tmp_path, "mlperf-training-4.0")
    assert row.hardware.accelerators == 16


def test_hpc_folders_have_one_name_more(tmp_path: Path) -> None:
    folder = tmp_path / "acme" / "results" / "box" / "strong" / "cosmoflow"
    for index in range(1, 11):
        write(folder / f"result_{index}.txt", mllog_lines(cosmoflow_20(index), index))
    (row,) = rows(tmp_path, "mlperf-hpc-2.0")
    assert (row.names.submitter, row.names.system, row.names.scale) == ("acme", "box", "strong")
    assert row.hardware.accelerators == 32  # the logs say it: there is no description
    assert row.standing.verdict == "pass"
    assert row.has_score


def test_v06_results_are_scored(tmp_path: Path) -> None:
    for index in range(10):
        write(tmp_path / f"result_{index}.txt", mll_lines(gnmt_06(index), index))
    (row,) = rows(tmp_path, "mlperf-training-0.6")
    assert (row.names.submitter, row.names.benchmark) == ("acme", "gnmt")
    assert row.hardware.accelerators is None
    assert row.standing.cost == pytest.approx(68.11 / 60, rel=1e-3)
    assert row.progress.epochs == 2


def test_the_table_says_which_way_an_aborted_run_counts(tmp_path: Path) -> None:
    submit(tmp_path, [resnet_40(k, status="aborted" if k == 1 else "success") for k in range(5)])
    text = write_table(rows(tmp_path, "mlperf-training-4.0"))
    assert "resnet, closed division" in text
    assert "acme/box: 1 run did not converge: the slowest" in text
