"""The test of convergence (rule T21): its table, its verdicts, and how often it judges whom how."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cepheid.compliance.score.convergence import Convergence, list_expected
from cepheid.compliance.score.convergence import compare as compare_crossings
from cepheid.compliance.score.trimmed import ONE_SIDED, one_sided_quantile
from cepheid.rules import definition, rcp
from cepheid.rules.evidence import find_crossing
from cepheid.rules.host import ROOT
from cepheid.rules.metrics import QualityTarget
from tests.compliance.builder import reference_points

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


@pytest.mark.parametrize(
    ("batch_size", "share", "verdict"),
    [
        (16, 1.0, "equal"), (16, 0.85, "early"), (16, 1.15, "late"), (16, 0.95, "equal"),
        (64, 1.0, "equal"), (64, 0.93, "early"), (64, 1.07, "late"),
        (32, 1.0, "equal"), (32, 0.85, "early"), (32, 1.15, "late"),
    ],
)  # fmt: skip
def test_verdict_and_factor(batch_size: int, share: float, verdict: str) -> None:
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


@pytest.mark.parametrize(
    ("curve", "crossing"),
    [
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
    ],
)
def test_where_a_run_crosses_its_targets(
    curve: list[tuple[int, dict[str, float]]], crossing: float | None
) -> None:
    assert find_crossing(curve, TWO_TARGETS) == pytest.approx(crossing)


@given(st.lists(st.tuples(*[st.floats(allow_nan=True)] * 2), max_size=6))
def test_a_crossing_lies_within_the_run(values: list[tuple[float, float]]) -> None:
    found = find_crossing(make_curve(*values), TWO_TARGETS)
    assert found is None or 0 < found <= 100 * len(values)
