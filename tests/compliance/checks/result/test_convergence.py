"""T21 over a whole result: who is compared, and what the finding says."""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.score.kinds import MINUTES
from cepheid.leaderboard.build import make_site_files
from cepheid.leaderboard.rows.data import write_csv, write_json
from cepheid.leaderboard.rows.entry import Entry, list_rows
from cepheid.rules import rcp
from cepheid.rules.definition import Definition
from cepheid.tools.console.tables import write_table
from tests.compliance.builder import put, reference_points, run_records, write_log, write_result
from tests.compliance.judging import judge_folder, make_site

SLOW = {5: [600] * 5, 10: [700] * 5, 20: [800] * 5}  # the built runs reach the targets after 150


def find_crossing(row: Entry) -> float:
    """The geometric mean of the crossings of a built result, between 100 and 150 samples."""
    return statistics.geometric_mean([run.crossing or 0.0 for run in row.judged.runs])


def save(
    mini: Definition, samples: Mapping[int, Sequence[int | None]], curves: bool = False
) -> None:
    rcp.save(mini.name, mini.scale, reference_points(mini, samples, curves))


def list_findings() -> list[Finding]:
    return [finding for finding in judge_folder().findings if finding.rule == "T21"]


def test_an_implausibly_fast_result_is_rejected(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    save(star_shape, SLOW)
    (finding,) = list_findings()
    assert (finding.code, finding.is_error, finding.path) == ("T21.too_fast", True, folder)
    assert finding.message == "implausibly few samples to target at batch size 10"
    assert finding.expected == "a mean of at least 614; the reference needs 675"
    (row,) = list_rows(judge_folder().results)
    crossed = find_crossing(row)
    assert finding.got == f"{crossed:,.0f}, factor {675 / crossed:.3f}"
    assert "`cepheid rcp star_shape --scale mini --batch-size 10` with --set" in finding.hint
    (entry,) = json.loads(write_json([row]))  # the verdict without the factor
    assert (entry["verdict"], entry["rcp_verdict"]) == ("rejected", "early")
    assert (entry["score_minutes"], entry["rcp_factor"]) == (None, None)
    assert "RCP" not in write_table([row])


def test_the_verdict_stands_beside_the_score(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    (compared,) = list_rows(judge_folder().results)
    assert compared.reference.verdict == "equal"
    save(star_shape, {10: [170] * 5})
    (faster,) = list_rows(judge_folder().results)
    factor = 145 / find_crossing(faster)
    assert faster.reference.factor == pytest.approx(factor)
    assert f"equal {factor:.2f}" in write_table([faster])
    assert f",equal,{factor:.4f}"[:-1] in write_csv([faster])
    page = dict(make_site_files(make_site()))["benchmarks/star_shape-mini.html"].decode()
    assert f'data-label="RCP" class="number" data-value="{factor:.4f}'[:-1] in page
    before, after = compared.standing.score, faster.standing.score
    assert before is not None
    assert after is not None
    needed = compared.judged.convergence
    assert needed is not None
    assert needed.expected is not None
    assert after.main.mean / before.main.mean == pytest.approx(145 / needed.expected.mean)
    assert after.estimates[MINUTES] == before.estimates[MINUTES]


def test_a_late_result_is_charged_with_its_own_samples(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    save(star_shape, {10: [100, 101, 102, 103, 104]}, curves=True)
    (finding,) = list_findings()
    assert (finding.code, finding.severity, finding.path) == ("T21.late", "note", folder)
    assert finding.message.endswith("the score is charged with their own samples")
    (row,) = list_rows(judge_folder().results)
    assert (row.reference.verdict, row.standing.verdict) == ("late", "scored")
    assert row.level is not None
    assert row.level.is_charged
    assert "charged with its own samples" in write_table([row])
    (entry,) = json.loads(write_json([row]))
    assert (entry["charged"], entry["rcp_verdict"]) == (True, "late")
    charged = entry["time_minutes"] * find_crossing(row) / 150
    assert entry["score_minutes"] == pytest.approx(charged, rel=2e-3)


@pytest.mark.parametrize("samples", [None, {}, {10: [150] * 4}, {10: [150] * 5 + [None]}])
def test_without_usable_points_there_is_a_note(
    samples: Mapping[int, Sequence[int | None]] | None, star_shape: Definition
) -> None:
    write_result(Path("out"), star_shape)
    if samples is None:
        Path("benchmarks/star_shape/rcp.json").unlink()
    else:
        save(star_shape, samples)
    (finding,) = list_findings()
    assert (finding.code, finding.severity) == ("T21.not_measured", "note")
    assert "there are no reference convergence points, so the result is prov" in finding.message
    (row,) = list_rows(judge_folder().results)
    assert (row.reference.verdict, row.standing.verdict) == ("not measured", "provisional")
    assert (row.is_ranked, row.has_score, row.level) == (False, True, None)
    (entry,) = json.loads(write_json([row]))
    assert entry["score_minutes"] is None
    assert entry["time_minutes"] == row.standing.cost
    assert entry["no_score"] == "there are no reference points"
    assert "only a time, no score" in write_table([row])


def test_points_of_another_definition_are_not_used(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    points = reference_points(star_shape, SLOW)
    rcp.save("star_shape", "mini", replace(points, definition_digest="0" * 64))
    (finding,) = list_findings()
    assert (finding.code, finding.severity) == ("T21.not_measured", "note")
    assert "for this version of the definition" in finding.message


def test_a_batch_size_outside_of_the_measured_ones_is_noted(star_shape: Definition) -> None:
    """Above all points and below all points."""
    write_result(Path("out"), star_shape)
    above = {4: [150] * 5, 8: [170] * 5, 500: [300] * 4}
    for samples, expected in (
        (above, "from 4 to 8"),
        ({40: [300] * 5, 80: [400] * 5}, "from 40 to 80"),
    ):
        save(star_shape, samples)
        (finding,) = list_findings()
        assert (finding.code, finding.severity) == ("T21.missing_point", "note")
        assert (finding.expected, finding.got) == (expected, "10")
        assert "`cepheid rcp star_shape --scale mini --batch-size 10`" in finding.hint
        (row,) = list_rows(judge_folder().results)
        assert (row.reference.verdict, row.reference.factor) == ("missing point", None)
        assert not row.is_ranked


def test_a_batch_size_between_two_points(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    save(star_shape, {4: [900] * 5, 16: [900] * 5})
    (finding,) = list_findings()
    assert (finding.code, finding.severity) == ("T21.too_fast", "error")
    assert finding.expected.endswith("the reference needs 875")
    assert judge_folder(folder / "result_0.txt").findings == ()  # a single log is not compared


@pytest.mark.parametrize(
    "write",
    [
        lambda mini: write_result(Path("out"), mini, division="open"),
        lambda mini: write_result(Path("out"), mini, runs=4),
        lambda mini: write_result(Path("out"), mini, runs=6),
        lambda mini: write_result(Path("out"), mini, converged=lambda index: index > 1),
        lambda mini: write_log(  # T18 says that it differs
            write_result(Path("out"), mini) / "result_0.txt",
            put(run_records(mini), "global_batch_size", value=20),
        ),
        lambda mini: write_log(  # T14 says that it is another definition's
            write_result(Path("out"), mini) / "result_0.txt",
            put(run_records(mini), "definition_digest", value="0" * 64),
        ),
    ],
)
def test_open_and_incomplete_results_are_not_compared(
    write: Callable[[Definition], object], star_shape: Definition
) -> None:
    write(star_shape)
    save(star_shape, SLOW)
    assert list_findings() == []
    (row,) = list_rows(judge_folder().results)
    assert (row.reference.verdict, row.reference.factor) == ("", None)


def test_of_five_runs_none_may_miss_if_there_shall_be_a_score(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape, converged=lambda index: index != 2)
    (row,) = list_rows(judge_folder().results)
    assert (row.standing.verdict, row.reference.verdict, row.is_ranked) == ("scored", "", False)
    assert row.standing.score
    assert "1 of 5 runs did not converge" in row.standing.score.why
