"""The convergence test of MLPerf's rounds: verdicts and factors of mlcommons' rcp_checker."""

import io
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.score import mlcommons
from cepheid.rules import rounds
from cepheid.rules.definition import Runs
from cepheid.rules.errors import UserError
from cepheid.tools import check_compliance
from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import change, resnet_40
from tests.compliance.judging import judge_as_mlperf

RUNS = Runs(5, 1, 1)
ROUND = rounds.load("mlperf-training-4.0")

Reference = Mapping[int, Sequence[float]]


def by_rcp_checker(
    counts: Sequence[float], size: int, reference: Reference
) -> tuple[bool, float, float]:
    """Verdict, factor and p-value of mlcommons' own checker, for resnet."""
    rcp_checker = pytest.importorskip("mlperf_logging.rcp_checker.rcp_checker")
    table = {
        str(batch): {"Benchmark": "resnet", "BS": batch, "Hyperparams": {},
                     "Epochs to converge": list(runs)}
        for batch, runs in reference.items()
    }  # fmt: skip
    file = io.StringIO(json.dumps(table))
    checker = rcp_checker.RCP_Checker("training", "4.0.0", "resnet", False, file)
    record = checker._find_rcp(size, "pruned_rcps")
    low, high = (
        find(size, "pruned_rcps")
        for find in (checker._find_top_min_rcp, checker._find_bottom_max_rcp)
    )
    if record is None and low and high:
        record = checker._create_interp_rcp(size, low, high)[1]
    if record is None and not high:
        return False, 1.0, 0.0
    record = record or checker._find_min_rcp("pruned_rcps")
    is_fine, factor = checker._eval_submission_record(record, list(counts), "")
    deviation, runs = record["RCP Stdev"], len(record["Epochs to converge"]) - 2
    reached = mean(sorted(counts)[1:-1]), deviation, runs if runs > 0 else 2 * RUNS.required
    _, p_value = checker._find_p_value(*reached, record["RCP Mean"], deviation, RUNS.required - 2)
    return bool(is_fine), float(factor), float(p_value)


COUNTS = st.lists(st.integers(20, 60), min_size=5, max_size=5)


@given(
    st.dictionaries(
        st.sampled_from([1024, 2048, 4096, 8192, 16384]),
        st.lists(st.integers(25, 55), min_size=10, max_size=20), min_size=1,
    ),
    COUNTS,
    st.sampled_from([512, 1024, 1536, 2048, 3000, 4096, 10000, 16384, 32768]),
)  # fmt: skip
def test_any_result_gets_the_verdict_of_rcp_checker(
    reference: Reference, counts: list[int], size: int
) -> None:
    found = mlcommons.compare(counts, size, reference, RUNS)
    is_fine, factor, p_value = by_rcp_checker(counts, size, reference)
    near = found.point and math.isclose(found.mean, found.point.least, abs_tol=2e-4)
    assert near or (found.verdict == "pass") == is_fine  # their search ends within 1e-4
    if is_fine:
        assert found.factor == pytest.approx(factor, rel=1e-12)
    if found.point and found.point.deviation:
        assert found.p_value == pytest.approx(p_value, rel=1e-9)


@given(st.lists(st.integers(25, 90), min_size=1, max_size=8))
def test_the_hull_is_convex_and_no_point_lies_below_it(means: list[int]) -> None:
    points = [mlcommons.Point(100.0 * k, mean, 1, 0, 1) for k, mean in enumerate(means, 1)]
    kept = mlcommons.prune(points, RUNS, is_hull=True)
    slopes = [
        (high.mean - low.mean) / (high.batch_size - low.batch_size)
        for low, high in itertools.pairwise(kept)
    ]
    assert all(0 <= first <= second + 1e-12 for first, second in itertools.pairwise(slopes))
    for low, high in itertools.pairwise(kept):
        for point in points[points.index(low) : points.index(high)]:
            share = (point.batch_size - low.batch_size) / (high.batch_size - low.batch_size)
            assert point.mean >= low.mean + share * (high.mean - low.mean) - 1e-9
    sizes = {point.batch_size for point in mlcommons.prune(points, RUNS)}
    assert {point.batch_size for point in kept} <= sizes


def test_runs_that_missed_are_dropped_and_another_hull_is_shown() -> None:
    reference = {100 * k: [float(mean)] * 10 for k, mean in enumerate((10, 18, 26.5, 20), 1)}
    found = mlcommons.compare([20.0] * 5, 200, reference, RUNS)
    assert found.by_hull
    assert found.by_hull.point != found.point
    same = mlcommons.compare([20.0] * 5, 200, {100: [10.0] * 10, 200: [20.0] * 10}, RUNS)
    assert same.by_hull is None
    reference = {2048: [34.0, 35, 36, 35, 34, 36, 35, 35, 34, 36]}
    found = mlcommons.compare([35, math.inf, 34, 36, 33], 2048, reference, RUNS)
    assert (found.verdict, found.mean) == ("pass", 35)


def submit_resnet(folder: Path, epochs: float, size: int = 3264) -> Path:
    runs = [change(resnet_40(k), "global_batch_size", value=size) for k in range(5)]
    reached = {"epoch_num": epochs}
    return submit(folder, [change(run, "eval_accuracy", 2, metadata=reached) for run in runs])


@pytest.mark.parametrize(
    ("epochs", "size", "codes"),
    [(35, 3264, set()), (20, 3264, {"M3.too_fast"}), (90, 10**6, {"M3.missing_point"}),
     (90, 64, set())],
)  # fmt: skip
def test_a_result_that_converges_too_early_is_told(
    epochs: float, size: int, codes: set[str], tmp_path: Path
) -> None:
    submit_resnet(tmp_path, epochs, size)
    for as_published, severity in ((False, "error"), (True, "warning")):
        found = judge_as_mlperf(tmp_path, ROUND.name, as_published).findings
        of_rule = [finding for finding in found if finding.rule == "M3"]
        assert {finding.code for finding in of_rule} == codes
        assert all(finding.severity == severity for finding in of_rule)


def test_a_note_tells_of_another_hull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = {100 * k: [float(mean)] * 10 for k, mean in enumerate((30, 38, 46.5, 40), 1)}
    monkeypatch.setattr(type(ROUND.rule_set), "read_reference_runs", lambda *_: reference)
    submit_resnet(tmp_path, 36, 200)
    found = judge_as_mlperf(tmp_path, ROUND.name).findings
    told = [(f.code, f.severity) for f in found if f.rule == "M3"]
    assert told == [("M3.hull", "note"), ("M3.too_fast", "error")]


@pytest.mark.parametrize(
    ("text", "factor"),
    [('{"scaling_factor": 1.1}', 1.1), ('{"scaling_factor": 0.9}', None), ("[]", None),
     ('{"scaling_factor": true}', None), ('{"scaling_factor": "1.1"}', None), ("{", None),
     ('{"scaling_factor": 1e999}', None), ("{}", None)],
)  # fmt: skip
def test_the_factor_of_a_score_is_read(text: str, factor: float | None, tmp_path: Path) -> None:
    (submit_resnet(tmp_path, 35) / "scaling.json").write_text(text)
    judgement = judge_as_mlperf(tmp_path, ROUND.name)
    assert judgement.results[0].summary.scaling == (factor or 1.0)
    assert [f.code for f in judgement.findings] == ([] if factor else ["M2.scaling"])


def test_the_factor_of_a_score_is_written_on_request(tmp_path: Path) -> None:
    """A result that needs fewer epochs than the reference's mean has one; an older file goes."""
    call = [str(tmp_path), "--round", ROUND.name, "--output", str(tmp_path / "out.txt")]
    for epochs, is_written in ((34.5, True), (90, False)):
        folder = submit_resnet(tmp_path, epochs)
        assert check_compliance.main(call) == 0
        assert (folder / "scaling.json").exists() != is_written  # nothing changes unasked
        assert check_compliance.main([*call, "--write-scaling"]) == 0
        assert (folder / "scaling.json").exists() == is_written
        (found,) = judge_as_mlperf(tmp_path, ROUND.name).results
        assert found.of_mlcommons
        assert found.summary.scaling == found.of_mlcommons.factor
    with pytest.raises(UserError, match="--write-scaling is for rounds of MLPerf"):
        check_compliance.main([str(tmp_path), "--write-scaling"])
