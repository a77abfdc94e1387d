"""Tests of convergence, of rule T21 and of MLPerf (rcp_checker): verdicts, factors, how often."""

import io
import itertools
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cepheid.compliance.score import mlcommons
from cepheid.compliance.score.convergence import Convergence, list_expected
from cepheid.compliance.score.convergence import compare as compare_crossings
from cepheid.compliance.score.trimmed import ONE_SIDED, one_sided_quantile
from cepheid.rules import definition, rcp, rounds
from cepheid.rules.definition import Runs
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import find_crossing
from cepheid.rules.host import ROOT
from cepheid.rules.metrics import QualityTarget
from cepheid.tools import check_compliance
from tests.compliance.builder import reference_points
from tests.compliance.checks.test_mlperf import submit
from tests.compliance.history import change, resnet_40
from tests.compliance.judging import judge_as_mlperf

MINI = definition.load("galaxy_shape", "mini")
EVERY = MINI.timing.eval_every_samples
COUNTS = {16: [24_000] * 5, 32: [24_000, 24_000, 27_008, 27_008, 27_008], 64: [33_024] * 5}


def make_points(crossings: dict[int, Sequence[float]]) -> rcp.ReferencePoints:
    """Points whose runs crossed the targets there, each with its curve."""
    counts = {size: [math.ceil(one) for one in known] for size, known in crossings.items()}
    made, points = reference_points(MINI, counts), []
    for point in made.points:
        pairs = zip(point.runs, crossings[point.batch_size], strict=True)
        runs = tuple(replace(run, crossing=float(crossing)) for run, crossing in pairs)
        points.append(replace(point, runs=runs))
    return replace(made, points=tuple(points))


def test_the_table_is_students() -> None:
    for confidence, quantiles in ONE_SIDED.items():
        for degrees, quantile in enumerate(quantiles, 1):
            assert quantile == pytest.approx(stats.t.ppf(confidence, degrees), abs=5e-7)
            assert one_sided_quantile(confidence, degrees) == quantile
        assert one_sided_quantile(confidence, 1000) == quantiles[-1]
    text = (ROOT / "rules" / "training.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (M|early, 0\.99|late, 0\.98) \| (.*) \|$", text, re.MULTILINE))
    for name, confidence in (("early, 0.99", 0.99), ("late, 0.98", 0.98)):
        for runs, printed in zip(rows["M"].split(" | "), rows[name].split(" | "), strict=True):
            degrees = int(runs.split()[0]) - 1
            assert float(printed) == pytest.approx(ONE_SIDED[confidence][degrees - 1], abs=5e-5)


POINTS = make_points({16: [20_000, 21_000, 19_000, 20_500, 19_500], 64: [30_000, 31_000] * 3})


def test_verdict_and_factor() -> None:
    for batch_size, share, verdict in [
        (16, 1.0, "equal"), (16, 0.85, "early"), (16, 1.15, "late"), (16, 0.95, "equal"),
        (64, 1.0, "equal"), (64, 0.93, "early"), (64, 1.07, "late"),
        (32, 1.0, "equal"), (32, 0.85, "early"), (32, 1.15, "late"),
    ]:  # fmt: skip
        by_size = {one.batch_size: one.log_mean for one in list_expected(POINTS, MINI)}
        between = (by_size[16] + by_size[64]) / 2  # 32 is the middle of 16 and 64 on a log axis
        expected = math.exp(by_size.get(batch_size, between))
        found = compare_crossings([share * expected] * 5, batch_size, POINTS, MINI)
        assert found.verdict == verdict
        assert found.factor == pytest.approx(1 / share)


@pytest.mark.parametrize(("share", "verdict"), [(0.955, "equal"), (0.945, "early"), (1.03, "late")])
def test_less_than_five_percent_is_never_early(share: float, verdict: str) -> None:
    """It gains nothing, as the reference's samples are in the score; what is late loses."""
    alike = make_points({16: [20_000, 20_010, 19_990, 20_005, 19_995], 64: [30_000] * 5})
    assert compare_crossings([share * 20_000] * 5, 16, alike, MINI).verdict == verdict


@pytest.mark.parametrize("batch_size", [4, 15, 65, 6_500])
def test_nothing_is_extrapolated(batch_size: int) -> None:
    found = compare_crossings([1.0] * 5, batch_size, POINTS, MINI)
    assert (found.verdict, found.factor, found.expected) == ("missing point", None, None)


def test_tripling_the_own_scatter_changes_no_verdict() -> None:
    """The mean alone counts: the limits are numbers of the reference."""
    narrow, wide = ([17_000 * math.exp(d * x) for x in (-1, -0.5, 0, 0.5, 1)] for d in (0.01, 0.2))
    found = [compare_crossings(runs, 16, POINTS, MINI) for runs in (narrow, wide)]
    assert [one.verdict for one in found] == ["early", "early"]
    assert found[0].statistic == pytest.approx(found[1].statistic)


crossings = st.lists(st.floats(1e3, 1e6), min_size=5, max_size=12)
ORDER = ("early", "equal", "late")


@given(crossings, crossings, st.floats(1, 3))
def test_more_samples_never_make_a_verdict_earlier(
    runs: list[float], reference: list[float], factor: float
) -> None:
    points = make_points({32: reference})

    def judge(samples: list[float]) -> int:
        return ORDER.index(compare_crossings(samples, 32, points, MINI).verdict)

    assert judge([factor * count for count in runs]) >= judge(runs)


@given(st.lists(st.floats(1e3, 1e6), min_size=5, max_size=12, unique=True))
def test_the_reference_passes_its_own_test(runs: list[float]) -> None:
    found = compare_crossings(runs, 32, make_points({32: runs}), MINI)
    assert found.verdict == "equal"
    assert found.factor == pytest.approx(1)


def test_without_curves_a_run_crossed_in_the_middle_of_its_last_interval() -> None:
    """Five equal counts: the scatter and the error of the mean are those of an interval."""
    expected, _, _ = list_expected(reference_points(MINI, COUNTS), MINI)
    assert not expected.is_interpolated
    assert expected.mean == pytest.approx(24_000 - EVERY / 2)
    unseen = (EVERY / expected.mean) ** 2 / 12
    assert expected.find_error(5) == pytest.approx(math.sqrt(unseen * (1 / 5 + 1 / 5 + 1)))


def share_of_verdicts(
    verdict: str, *, scatter: float, later: float, curves: bool, runs: int = 5, trials: int = 1500
) -> float:
    """The share of results of so many runs with this verdict, against twice as many of a reference.

    ``scatter`` is that of the logarithm of a crossing; ``later`` the true difference.
    """
    source, counted = random.Random(f"{verdict} {scatter} {later} {curves}"), 0
    for _ in range(trials):
        centre = EVERY * (8 + source.random())

        def cross(mean: float, count: int) -> list[float]:
            return [mean * math.exp(source.gauss(0, scatter)) for _ in range(count)]

        reference = cross(centre, 2 * runs)
        counts = [EVERY * math.ceil(one / EVERY) for one in reference]
        points = make_points({32: reference}) if curves else reference_points(MINI, {32: counts})
        found: Convergence = compare_crossings(cross(centre * (1 + later), runs), 32, points, MINI)
        counted += found.verdict == verdict
    return counted / trials


@pytest.mark.parametrize("scatter", [0.02, 0.08])
def test_honest_results_are_rejected_once_and_charged_twice_in_a_hundred(scatter: float) -> None:
    early = share_of_verdicts("early", scatter=scatter, later=0, curves=True)
    late = share_of_verdicts("late", scatter=scatter, later=0, curves=True)
    assert early < 0.02  # 0.01, and three standard errors
    assert 0.01 < late < 0.035


@pytest.mark.parametrize("scatter", [0.005, 0.02, 0.08])
def test_without_curves_honest_results_are_not_rejected_more_often(scatter: float) -> None:
    assert share_of_verdicts("early", scatter=scatter, later=0, curves=False) < 0.015
    assert share_of_verdicts("late", scatter=scatter, later=0, curves=False) < 0.035


def test_ten_percent_are_seen_where_the_design_says_so() -> None:
    """With five runs and a scatter of 5%: 0.82 early and 0.84 late."""
    assert share_of_verdicts("early", scatter=0.05, later=-0.1, curves=True) > 0.75
    assert share_of_verdicts("late", scatter=0.05, later=0.1, curves=True) > 0.75


HIGH, LOW = QualityTarget("accuracy", "higher", 0.8), QualityTarget("loss", "lower", 1.0)
TWO_TARGETS = replace(MINI, quality=(HIGH, LOW))


def make_curve(*values: tuple[float, float]) -> list[tuple[int, dict[str, float]]]:
    pairs = enumerate(values, 1)
    return [(100 * number, {"accuracy": one, "loss": other}) for number, (one, other) in pairs]


def test_where_a_run_crosses_its_targets() -> None:
    for curve, crossing in [
        (make_curve((0.6, 0.5), (0.9, 0.5)), 100 + 100 * 2 / 3),
        (make_curve((0.9, 3.0), (0.9, 0.5)), 180),  # the loss: 0.8 of the way from 3 to 0.5
        (make_curve((0.6, 3.0), (0.9, 0.5)), 180),  # the later of the two
        (make_curve((0.9, 0.5)), 100),  # nothing before it
        (make_curve((0.6, 0.5), (0.9, 0.5), (0.7, 0.5), (0.9, 0.5), (0.9, 0.5)), 350),
        (make_curve((0.6, 0.5), (0.9, 0.5), (0.7, 0.5), (0.9, 0.5)), 350),
        (make_curve((0.6, 0.5), (0.9, 0.5), (0.7, 0.5)), None),
        (make_curve((math.nan, 0.5), (0.9, 0.5)), 200),
        (make_curve((-math.inf, 0.5), (0.9, 0.5)), 200),
        ([(100, {"loss": 0.5}), (200, {"accuracy": 0.9, "loss": 0.5})], 200),
        ([], None),
    ]:
        assert find_crossing(curve, TWO_TARGETS) == pytest.approx(crossing)


@given(st.lists(st.tuples(*[st.floats(allow_nan=True)] * 2), max_size=6))
def test_a_crossing_lies_within_the_run(values: list[tuple[float, float]]) -> None:
    found = find_crossing(make_curve(*values), TWO_TARGETS)
    assert found is None or 0 < found <= 100 * len(values)


FIVE = Runs(5, 1, 1)
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
    reached = mean(sorted(counts)[1:-1]), deviation, runs if runs > 0 else 2 * FIVE.required
    _, p_value = checker._find_p_value(*reached, record["RCP Mean"], deviation, FIVE.required - 2)
    return bool(is_fine), float(factor), float(p_value)


@given(
    st.dictionaries(
        st.sampled_from([1024, 2048, 4096, 8192, 16384]),
        st.lists(st.integers(25, 55), min_size=10, max_size=20), min_size=1,
    ),
    st.lists(st.integers(20, 60), min_size=5, max_size=5),
    st.sampled_from([512, 1024, 1536, 2048, 3000, 4096, 10000, 16384, 32768]),
)  # fmt: skip
def test_any_result_gets_the_verdict_of_rcp_checker(
    reference: Reference, counts: list[int], size: int
) -> None:
    found = mlcommons.compare(counts, size, reference, FIVE)
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
    kept = mlcommons.prune(points, FIVE, is_hull=True)
    slopes = [
        (high.mean - low.mean) / (high.batch_size - low.batch_size)
        for low, high in itertools.pairwise(kept)
    ]
    assert all(0 <= first <= second + 1e-12 for first, second in itertools.pairwise(slopes))
    for low, high in itertools.pairwise(kept):
        for point in points[points.index(low) : points.index(high)]:
            share = (point.batch_size - low.batch_size) / (high.batch_size - low.batch_size)
            assert point.mean >= low.mean + share * (high.mean - low.mean) - 1e-9
    sizes = {point.batch_size for point in mlcommons.prune(points, FIVE)}
    assert {point.batch_size for point in kept} <= sizes


def test_runs_that_missed_are_dropped_and_another_hull_is_shown() -> None:
    reference = {100 * k: [float(mean)] * 10 for k, mean in enumerate((10, 18, 26.5, 20), 1)}
    found = mlcommons.compare([20.0] * 5, 200, reference, FIVE)
    assert found.by_hull
    assert found.by_hull.point != found.point
    same = mlcommons.compare([20.0] * 5, 200, {100: [10.0] * 10, 200: [20.0] * 10}, FIVE)
    assert same.by_hull is None
    reference = {2048: [34.0, 35, 36, 35, 34, 36, 35, 35, 34, 36]}
    found = mlcommons.compare([35, math.inf, 34, 36, 33], 2048, reference, FIVE)
    assert (found.verdict, found.mean) == ("pass", 35)


def submit_resnet(folder: Path, epochs: float, size: int = 3264) -> Path:
    runs = [change(resnet_40(k), "global_batch_size", value=size) for k in range(5)]
    reached = {"epoch_num": epochs}
    return submit(folder, [change(run, "eval_accuracy", 2, metadata=reached) for run in runs])


def test_a_result_that_converges_too_early_is_told(tmp_path: Path) -> None:
    for epochs, size, code in ((35, 3264, ""), (20, 3264, "M3.too_fast"),
                               (90, 10**6, "M3.missing_point"), (90, 64, "")):  # fmt: skip
        submit_resnet(tmp_path, epochs, size)
        for as_published, severity in ((False, "error"), (True, "warning")):
            found = judge_as_mlperf(tmp_path, ROUND.name, as_published).findings
            of_rule = {(each.code, each.severity) for each in found if each.rule == "M3"}
            assert of_rule == ({(code, severity)} if code else set())


def test_a_note_tells_of_another_hull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = {100 * k: [float(mean)] * 10 for k, mean in enumerate((30, 38, 46.5, 40), 1)}
    monkeypatch.setattr(type(ROUND.rule_set), "read_reference_runs", lambda *_: reference)
    submit_resnet(tmp_path, 36, 200)
    found = judge_as_mlperf(tmp_path, ROUND.name).findings
    told = [(f.code, f.severity) for f in found if f.rule == "M3"]
    assert told == [("M3.hull", "note"), ("M3.too_fast", "error")]


def test_the_factor_of_a_score_is_read(tmp_path: Path) -> None:
    for text, factor in (
        ('{"scaling_factor": 1.1}', 1.1), ('{"scaling_factor": 0.9}', None), ("[]", None),
        ('{"scaling_factor": true}', None), ('{"scaling_factor": "1.1"}', None), ("{", None),
        ('{"scaling_factor": 1e999}', None), ("{}", None),
    ):  # fmt: skip
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
