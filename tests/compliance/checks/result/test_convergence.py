"""T21 over a whole result: who is compared, and what the finding says."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.leaderboard.build import make_site_files
from cepheid.leaderboard.rows.data import write_csv, write_json
from cepheid.leaderboard.rows.entry import list_rows
from cepheid.leaderboard.rows.tables import write_table
from cepheid.rules import rcp
from cepheid.rules.definition import Definition
from tests.compliance.builder import (
    Record,
    edit,
    put,
    reference_points,
    run_records,
    write_log,
    write_result,
)
from tests.compliance.judging import judge_folder, make_site

SLOW = {5: [300] * 5, 10: [350] * 5, 20: [400] * 5}  # the built runs reach the targets after 150


def save(mini: Definition, samples: Mapping[int, Sequence[int | None]]) -> None:
    rcp.save(mini.name, mini.scale, reference_points(mini, samples))


def list_findings() -> list[Finding]:
    return [finding for finding in judge_folder().findings if finding.rule == "T21"]


def test_a_result_like_the_reference_raises_nothing(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    assert judge_folder().findings == ()


def test_an_implausibly_fast_result_is_an_error(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    save(star_shape, SLOW)
    (finding,) = list_findings()
    assert (finding.code, finding.is_error, finding.path) == ("T21.too_fast", True, folder)
    assert finding.message == "implausibly few samples to target at batch size 10"
    assert finding.expected == "a mean of at least 307; the reference needs 350"
    assert finding.got == "150, factor 2.33"
    assert "`cepheid rcp star_shape --scale mini --batch-size 10` with --set" in finding.hint


def test_a_rejected_result_shows_the_verdict_without_the_factor(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    save(star_shape, SLOW)
    rows = list_rows(judge_folder().results)
    (entry,) = json.loads(write_json(rows))
    assert (entry["verdict"], entry["rcp_verdict"]) == ("rejected", "fail")
    assert (entry["score_minutes"], entry["rcp_factor"]) == (None, None)
    assert "RCP" not in write_table(rows)


def test_the_factor_stands_beside_the_score_and_changes_nothing(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    (compared,) = list_rows(judge_folder().results)
    assert (compared.reference.verdict, compared.reference.factor) == ("pass", 1.0)
    save(star_shape, {10: [170] * 5})
    (faster,) = list_rows(judge_folder().results)
    assert faster.reference.factor == pytest.approx(170 / 150)
    assert faster.standing == compared.standing
    assert "pass 1.13" in write_table([faster])
    assert ",pass,1.133333" in write_csv([faster])
    page = dict(make_site_files(make_site()))["benchmarks/star_shape-mini.html"].decode()
    assert 'data-label="RCP" class="short" data-value="1.1333' in page


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


def test_points_of_another_definition_are_not_used(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    points = reference_points(star_shape, SLOW)
    rcp.save("star_shape", "mini", replace(points, definition_digest="0" * 64))
    (finding,) = list_findings()
    assert (finding.code, finding.severity) == ("T21.not_measured", "note")
    assert "for this version of the definition" in finding.message


def test_a_batch_size_above_the_largest_is_noted(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape)
    save(star_shape, {4: [150] * 5, 8: [170] * 5, 500: [300] * 4})
    (finding,) = list_findings()
    assert (finding.code, finding.severity) == ("T21.missing_point", "note")
    assert (finding.expected, finding.got) == ("at most 8", "10")
    assert "`cepheid rcp star_shape --scale mini --batch-size 10`" in finding.hint
    (row,) = list_rows(judge_folder().results)
    assert (row.reference.verdict, row.reference.factor) == ("missing point", None)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ({4: [290] * 5, 8: [300] * 5}, "300 at the nearest measured batch size, 8"),
        ({40: [300] * 5, 80: [400] * 5}, "300 at the nearest measured batch size, 40"),
        ({4: [300] * 5, 16: [300] * 5}, "300"),
    ],
    ids=["above all points", "below all points", "between two points"],
)
def test_a_batch_size_without_a_point_is_compared_with_the_nearest(
    samples: Mapping[int, Sequence[int | None]], expected: str, star_shape: Definition
) -> None:
    write_result(Path("out"), star_shape)
    save(star_shape, samples)
    (finding,) = list_findings()
    assert (finding.code, finding.severity) == ("T21.too_fast", "error")
    assert finding.expected.endswith(f"the reference needs {expected}")
    (row,) = list_rows(judge_folder().results)
    assert row.reference.verdict == "fail"


def _other_batch(record: Record) -> object:
    return record.update(value=20)


@pytest.mark.parametrize(
    "write",
    [
        lambda mini: write_result(Path("out"), mini, division="open"),
        lambda mini: write_result(Path("out"), mini, runs=4),
        lambda mini: write_result(Path("out"), mini, runs=6),
        lambda mini: write_result(Path("out"), mini, converged=lambda index: index > 1),
        lambda mini: write_log(  # T18 says that it differs
            write_result(Path("out"), mini) / "result_0.txt",
            edit(run_records(mini), "global_batch_size", _other_batch),
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


def test_a_run_that_did_not_converge_counts_as_the_slowest(star_shape: Definition) -> None:
    write_result(Path("out"), star_shape, converged=lambda index: index != 2)
    save(star_shape, {10: [170] * 5})
    (row,) = list_rows(judge_folder().results)
    assert row.reference.factor == pytest.approx(170 / 150)


def test_a_single_log_is_not_compared(star_shape: Definition) -> None:
    folder = write_result(Path("out"), star_shape)
    save(star_shape, SLOW)
    assert judge_folder(folder / "result_0.txt").findings == ()
