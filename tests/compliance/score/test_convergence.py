"""The RCP test: its arithmetic, and how often it rejects whom. The numbers of rule T21 are here."""

import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cepheid.compliance.score.convergence import Convergence, list_expected
from cepheid.compliance.score.convergence import compare as compare_samples
from cepheid.compliance.score.trimmed import ONE_SIDED_95, one_sided_quantile
from cepheid.rules import definition
from cepheid.rules.host import ROOT
from tests.compliance.builder import reference_points

MINI = definition.load("galaxy_shape", "mini")
EVERY = MINI.timing.eval_every_samples
POINTS = reference_points(
    MINI, {16: [24_000] * 5, 32: [24_000, 24_000, 27_008, 27_008, 27_008], 64: [33_024] * 5}
)


def compare(samples: Sequence[float], batch_size: int) -> Convergence:
    return compare_samples(samples, batch_size, POINTS, MINI)


def test_the_table_is_students() -> None:
    for degrees, quantile in enumerate(ONE_SIDED_95, 1):
        assert quantile == pytest.approx(stats.t.ppf(0.95, degrees), abs=5e-5)
        assert one_sided_quantile(degrees) == quantile
    assert one_sided_quantile(1000) == ONE_SIDED_95[-1]
    text = (ROOT / "rules" / "training.md").read_text(encoding="utf-8")
    runs, quantiles = re.findall(r"^\| (?:n|t\(n − 1\)) \| (.*) \|$", text, re.MULTILINE)
    for count, printed in zip(runs.split(" | "), quantiles.split(" | "), strict=True):
        assert float(printed) == ONE_SIDED_95[int(count.split()[0]) - 2]


def test_the_example_of_the_rule() -> None:
    """`rules/training.md` works this one out: 26,005 and 23,138."""
    _, expected, _ = list_expected(POINTS, MINI)
    assert round(expected.mean) == 26_005
    assert round(expected.least) == 23_138


def test_equal_runs_still_leave_room_for_most_of_an_evaluation_interval() -> None:
    expected, _, _ = list_expected(POINTS, MINI)
    assert expected.mean == 24_000
    assert expected.mean - expected.least == pytest.approx(
        ONE_SIDED_95[3] * EVERY / 2 * math.sqrt(2 / 3)
    )
    assert 0.8 * EVERY < expected.mean - expected.least < EVERY


@pytest.mark.parametrize(
    ("batch_size", "mean", "verdict", "reference"),
    [
        (32, 23_138, "pass", 26_005.33),
        (32, 23_137, "fail", 26_005.33),
        (32, 44_000, "pass", 26_005.33),  # slower is always allowed
        (48, 26_800, "pass", (26_005.33 + 33_024) / 2),
        (48, 26_700, "fail", (26_005.33 + 33_024) / 2),
        (4, 21_400, "pass", 24_000),
        (4, 21_300, "fail", 24_000),
        (64, 30_500, "pass", 33_024),
    ],
)
def test_verdict_and_factor(batch_size: int, mean: float, verdict: str, reference: float) -> None:
    found = compare([1, mean, mean, mean, math.inf], batch_size)  # the extremes are dropped
    assert (found.verdict, found.samples) == (verdict, mean)
    assert found.factor == pytest.approx(reference / mean, rel=1e-5)


def test_nothing_is_extrapolated_above_the_largest_batch_size() -> None:
    plausible = compare([30_500] * 5, 65)
    assert (plausible.verdict, plausible.factor) == ("missing point", None)
    at_once = compare([3_008] * 5, 6_500)  # a larger batch does not need fewer samples
    assert at_once.verdict == "fail"
    assert at_once.expected is not None
    assert at_once.expected.batch_size == 64


def test_unusable_points_count_as_not_measured() -> None:
    stale = replace(POINTS, definition_digest="0" * 64)
    too_few = reference_points(MINI, {32: [24_000] * 4})
    missed = reference_points(MINI, {32: [24_000] * 6 + [None]})
    for points in (None, stale, too_few, missed):
        found = compare_samples([1] * 5, 32, points, MINI)
        assert (found.verdict, found.factor) == ("not measured", None)


def test_an_unusable_point_does_not_spoil_the_others() -> None:
    points = reference_points(MINI, {16: [24_000] * 5, 32: [None] * 5, 64: [24_000] * 5})
    found = compare_samples([24_000] * 5, 32, points, MINI)
    assert found.expected is not None
    assert found.expected.mean == 24_000


def test_too_many_runs_that_did_not_converge_are_an_error() -> None:
    with pytest.raises(ValueError, match="no finite values"):
        compare([24_000] * 3 + [math.inf] * 2, 32)


counts = st.integers(1, 100)


@given(st.lists(counts, min_size=5, max_size=5), counts, counts)
def test_more_samples_never_make_a_pass_a_fail(runs: list[int], more: int, batch: int) -> None:
    before = compare([300 * count for count in runs], batch)
    after = compare([300 * (count + more) for count in runs], batch)
    assert not (before.verdict == "pass" and after.verdict == "fail")


@given(st.lists(counts, min_size=5, max_size=12))
def test_the_reference_passes_its_own_test(runs: list[int]) -> None:
    samples = [EVERY * count for count in runs]
    points = reference_points(MINI, {32: samples})
    mean = statistics.mean(sorted(samples)[1:-1])
    found = compare_samples([mean] * 5, 32, points, MINI)
    assert found.verdict == "pass"
    assert found.factor == pytest.approx(1)


# How often the test rejects whom. Runs are simulated: each crosses the target somewhere, which is
# seen at the next evaluation. Deviations and places are in evaluation intervals.


def count_samples(crossings: Sequence[float]) -> list[int]:
    """Samples to target of runs that cross the target so many intervals after the start."""
    return [math.ceil(crossing) * EVERY for crossing in crossings]


def runs_around(source: random.Random, place: float, deviation: float, count: int = 5) -> list[int]:
    return count_samples([source.gauss(place, deviation) for _ in range(count)])


def share_rejected(
    deviation: float,
    trials: int,
    *,
    place: float | None = None,
    faster: float = 0.0,
    runs: int = 5,
    least: Callable[[Sequence[int]], float] | None = None,
) -> float:
    """The share of results that fail, each against a reference of its own.

    The crossing lies anywhere in an evaluation interval, or at ``place``. ``least`` replaces the
    smallest plausible mean of the rule.
    """
    source = random.Random(1)
    failed = 0
    for _ in range(trials):
        centre = 20 + (source.random() if place is None else place)
        reference = runs_around(source, centre, deviation, runs)
        result = runs_around(source, centre - faster, deviation)
        found = compare_samples(result, 32, reference_points(MINI, {32: reference}), MINI)
        if least is None:
            failed += found.verdict == "fail"
        else:
            failed += found.samples < least(reference)
    return failed / trials


@pytest.mark.parametrize("runs", [5, 10])
def test_honest_results_fail_in_about_3_of_100(runs: int) -> None:
    assert 0.02 < share_rejected(3.0, 4000, runs=runs) < 0.04


@pytest.mark.parametrize("place", [0.0, 0.1, 0.2, 0.3, 0.4])
@pytest.mark.parametrize("deviation", [0.05, 0.2, 0.4])
def test_wherever_runs_cross_at_most_5_of_100_fail(deviation: float, place: float) -> None:
    assert share_rejected(deviation, 1000, place=place) < 0.055  # 3000 trials give 0.04 at most


def test_between_batch_sizes_at_most_5_of_100_fail() -> None:
    source, failed, trials = random.Random(2), 0, 2000
    for _ in range(trials):
        low, high = 20 + source.random(), 21 + 2 * source.random()
        reference = {16: runs_around(source, low, 0.05), 48: runs_around(source, high, 0.05)}
        result = runs_around(source, (low + high) / 2, 0.05)
        failed += (
            compare_samples(result, 32, reference_points(MINI, reference), MINI).verdict == "fail"
        )
    assert failed / trials < 0.05


def test_one_interval_less_in_all_runs_is_seen() -> None:
    assert share_rejected(0.3, 1000, place=0.5, faster=1.0) > 0.85


def test_the_deviation_of_the_kept_runs_would_reject_too_many() -> None:
    def least(reference: Sequence[int]) -> float:
        kept = sorted(reference)[1:-1]
        quantile = ONE_SIDED_95[len(kept) + 3 - 2 - 1]
        return statistics.mean(kept) - quantile * statistics.stdev(kept) * math.sqrt(2 / 3)

    assert share_rejected(3.0, 2000, least=least) > 0.10


def test_without_a_least_deviation_too_many_would_be_rejected() -> None:
    def least(reference: Sequence[int]) -> float:
        mean = statistics.mean(sorted(reference)[1:-1])
        return mean - ONE_SIDED_95[3] * statistics.stdev(reference) * math.sqrt(2 / 3)

    assert max(share_rejected(0.2, 2000, place=p, least=least) for p in (0.1, 0.2, 0.8)) > 0.065
