"""Ratios and ranks of results: symmetric, without units; and scores by hand (rules T20 to T22).

The examples are computed apart from this code, to six digits.
"""

import math
import random
from statistics import fmean, variance

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cepheid.compliance.score import comparison
from cepheid.compliance.score.comparison import (
    Ratio,
    describe,
    find_probabilities,
    mean_ratio,
    rank_levels,
    ratio,
)
from cepheid.compliance.score.convergence import Convergence, Expected, Loading, interpolate, judge
from cepheid.compliance.score.levels import Level, average, measure_score, measure_times
from tests.compliance.asserting import require

COSTS = st.lists(st.floats(1e-3, 1e6), min_size=4, max_size=12)


def measure(costs: list[float]) -> Level:
    found = measure_times(costs, 1, 1)
    assert found is not None
    return found


@given(COSTS, COSTS)
def test_the_reversed_ratio_is_the_inverse(one: list[float], other: list[float]) -> None:
    there, back = ratio(measure(one), measure(other)), ratio(measure(other), measure(one)).inverse
    assert there.low is not None
    assert back.low is not None
    assume(there.high is not None and there.high < 1e100)
    assert back.value == pytest.approx(there.value)
    assert back.low == pytest.approx(there.low, rel=1e-6)
    assert there.is_difference == back.is_difference


@given(COSTS, st.floats(1.1, 100))
def test_the_ratio_is_that_of_the_costs(costs: list[float], factor: float) -> None:
    found = ratio(measure(costs), measure([factor * cost for cost in costs]))
    assert found.value == pytest.approx(factor)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("spreads", [(0.1, 0.1), (0.02, 0.3), (0.5, 0.2)])
@pytest.mark.parametrize(("runs", "heavy"), [(5, False), (10, False), (5, True)])
def test_the_interval_holds_the_truth(spreads: tuple[float, float], runs: int, heavy: bool) -> None:
    """95% of the time or more, also with a wild run in ten and with unequal spreads."""
    generator = random.Random(f"{spreads} {runs} {heavy}")

    def draw(spread: float) -> list[float]:
        wild = [3 if heavy and generator.random() < 0.1 else 1 for _ in range(runs)]
        return [math.exp(generator.gauss(0, spread * factor)) for factor in wild]

    trials, held = 4000, 0
    for _ in range(trials):
        found = ratio(measure(draw(spreads[0])), measure(draw(spreads[1])))
        held += not found.is_difference
    assert held / trials > 0.935, held / trials  # less three standard errors of 0.0035
    assert held / trials < 0.995, held / trials  # nor is it so wide that it says nothing


def test_runs_that_missed_are_slowest_and_three_are_too_few() -> None:
    assert measure([3, 1, 2, math.inf]).log_mean == measure([3, 1, 2, 1000]).log_mean
    assert measure_times([1, 2, math.inf, math.inf], 1, 1) is None
    assert measure_times([1, 2], 1, 1) is None
    found = ratio(measure([1, 2, 3]), measure([4, 5, 6]))
    assert (found.low, found.high) == (None, None)
    assert "too few" in describe("a", "b", found)


def test_the_aggregate_is_the_geometric_mean() -> None:
    slow = measure([8, 8, 9, 9])
    pairs = [(measure([4, 4, 4.5, 4.5]), slow), (measure([1, 1, 9 / 8, 9 / 8]), slow)]
    found = mean_ratio(pairs)
    assert found.value == pytest.approx(math.sqrt(2 * 8))
    one = ratio(*pairs[0])
    assert one.low is not None
    assert found.low is not None
    assert found.low / found.value == pytest.approx((one.low / one.value) ** 0.5, rel=0.3)


def test_comparisons_are_described_in_sentences() -> None:
    for found, text in [
        (Ratio(1.8, 1.7, 1.9, (5, 5)),
         "a is 1.80 times as fast as b, 95% interval 1.70–1.90 (5 and 5 runs)."),
        (Ratio(0.5, 0.4, 0.625, (5, 7)),
         "b is 2.00 times as fast as a, 95% interval 1.60–2.50 (7 and 5 runs)."),
        (Ratio(1.1, 0.9, 1.3, (5, 5)),
         "No difference between a and b can be claimed from 5 and 5 runs: "
         "ratio 1.10, 95% interval 0.90–1.30."),
    ]:  # fmt: skip
        assert describe("a", "b", found) == text


def rank(*results: list[float]) -> list[tuple[int, str]]:
    levels = sorted(map(measure, results), key=lambda level: level.log_mean)
    return [(found.value, found.interval) for found in rank_levels(levels)]


def test_results_share_a_rank_until_all_before_are_faster() -> None:
    one = [1.0, 1.01, 1.02, 1.03, 1.04]
    same = [1.005, 1.015, 1.025, 1.035, 1.045]
    slower = [2.0, 2.02, 2.04, 2.06, 2.08]
    assert rank(one, same, slower) == [(1, "1 to 2"), (1, "1 to 2"), (3, "3")]
    # The third, of wide spread, is not slower than the first beyond doubt; the second one is.
    first = [1.0, 1.001, 1.002, 1.003, 1.004]
    second = [1.1, 1.101, 1.102, 1.103, 1.104]
    noisy = [0.2, 0.3, 1.6, 8.0, 9.0]
    assert [value for value, _ in rank(first, second, noisy)] == [1, 2, 2]
    levels = [Level(place, None, 0, 1) for place in (0.0, 0.1, 0.2)]
    assert [(found.value, found.interval) for found in rank_levels(levels)] == [(1, "1 to 3")] * 3
    sure = Level(0.3, 1e-8, 9, 10)
    assert [found.value for found in rank_levels([*levels, sure])] == [1, 1, 1, 1]
    assert [found.value for found in rank_levels([])] == []


def test_ten_equal_systems_are_told_apart_in_at_most_one_table_of_twenty() -> None:
    generator, tables, wrong = random.Random(3), 1000, 0
    for _ in range(tables):
        results = [average([generator.gauss(0, 0.03) for _ in range(5)]) for _ in range(10)]
        results.sort(key=lambda level: level.log_mean)
        wrong += any(found.value > 1 for found in rank_levels(results))
    assert wrong / tables < 0.05, wrong


HOUR = 3_600_000


def test_from_five_sittings_on_their_means_are_what_scatters() -> None:
    for starts, sittings, degrees in [
        ([], 0, 9),
        ([None, *range(9)], 0, 9),
        ([run * HOUR for run in range(10)], 1, 9),
        ([run // 3 * 9 * HOUR + run for run in range(10)], 4, 9),
        ([run // 2 * 9 * HOUR + run for run in range(10)], 5, 4),
        ([run * 2 * HOUR for run in range(10)], 10, 9),
    ]:
        level = average([run // 2 + 0.01 * (run % 2) for run in range(10)], starts)
        assert (level.sittings, level.degrees) == (sittings, degrees)
        assert level.log_mean == pytest.approx(2.005)
        assert level.variance == pytest.approx(0.5 if degrees == 4 else 20.00025 / 90, rel=1e-4)


def test_the_order_of_the_logs_does_not_make_sittings() -> None:
    logs, starts = [0.0, 1.0, 2.0, 3.0, 4.0], [float(4 - run) * 3 * HOUR for run in range(5)]
    assert average(logs, starts) == average(logs[::-1], starts[::-1])


@given(st.lists(st.lists(st.floats(0.5, 2.0), min_size=5, max_size=8), min_size=1, max_size=7))
def test_ranks_are_in_order_and_within_their_intervals(results: list[list[float]]) -> None:
    levels = sorted(map(measure, results), key=lambda level: level.log_mean)
    ranks = rank_levels(levels)
    assert ranks[0].value == 1
    assert [found.value for found in ranks] == sorted(found.value for found in ranks)
    for place, found in enumerate(ranks):
        assert 1 <= found.best <= found.value <= len(levels)
        assert found.best <= found.worst
        nearest = comparison.find_probabilities(levels, np.arange(place), np.full(place, place))
        assert found.best <= 1 + np.sum(nearest <= 0.05)  # Holm claims no more than pairs


SMALL = "60400 65200 58900 63100 61800 67300 62500 59700 64600 61100"
LARGE = "70100 74800 68300 72900 71500 77600 72200 69400 75300 70600"
PACES = "2.011 2.043 1.987 2.025 2.004"  # milliseconds per sample


def read(text: str) -> list[float]:
    return [float(number) for number in text.split()]


def make_point(batch_size: int, crossings: str) -> Expected:
    logs = [math.log(count) for count in read(crossings)]
    loading = Loading(str(batch_size), 1.0, variance(logs) / len(logs), len(logs) - 1)
    return Expected(batch_size, fmean(logs), math.sqrt(variance(logs)), (loading,))


A, B = make_point(64, SMALL), make_point(128, LARGE)
RESULTS = {
    "P": (PACES, "61900 64200 60300 63500 59800", A),
    "Q": ("2.112 2.151 2.138 2.095 2.129", "62400 59900 65100 61600 63000", A),
    "R": ("1.903 1.934 1.921 1.888 1.915", "69800 72300 67500 70900 68600", A),
    "T": ("1.742 1.771 1.733 1.759 1.748", "71800 74600 69900 73300 72500", B),
    "E": (PACES, "54800 56900 53100 55700 52600", A),
}


def judge_result(name: str) -> Convergence:
    _, crossings, point = RESULTS[name]
    return judge(read(crossings), point.batch_size, point)


def measure_by_hand(name: str) -> Level | None:
    """The level of a result in seconds instead of minutes."""
    paces, crossings, _ = RESULTS[name]
    seconds = [60 * pace / 1000 for pace in read(paces)]
    return measure_score(seconds, judge_result(name), read(crossings))


def get_level(name: str) -> Level:
    return require(measure_by_hand(name))


def is_close(found: float | None, expected: float) -> bool:
    return found == pytest.approx(expected, rel=1e-6)


def test_what_the_reference_needs_at_and_between_batch_sizes() -> None:
    assert is_close(A.mean, 62410.272731)
    assert is_close(B.mean, 72217.623970)
    assert A.scatter == pytest.approx(0.041972, abs=5e-7)
    assert A.find_limits(5) == pytest.approx((58490.6759, 65948.1002), rel=1e-7)
    assert B.find_limits(5) == pytest.approx((67884.2847, 76118.1345), rel=1e-7)
    found = require(interpolate([A, B], 96))
    assert [one.share for one in found.loadings] == pytest.approx([0.415037, 0.584963], abs=1e-6)
    assert is_close(found.mean, 67972.800890)
    assert is_close(found.scatter, 0.04085424)
    assert found.find_error(10**12) == pytest.approx(0.00923093, rel=1e-5)
    assert is_close(found.find_error(5), 0.02047007)
    assert found.degrees == 9
    assert found.find_limits(5) == pytest.approx((64158.2450, 71393.2902), rel=1e-7)


def test_scores() -> None:
    for name, t, verdict, score, low, high in [
        ("P", -0.345801, "equal", 125.688716, 123.752639, 127.655083),
        ("Q", -0.023372, "equal", 132.616152, 130.607459, 134.655739),
        ("R", 4.867502, "late", 133.466492, 127.943788, 139.227585),
        ("T", 0.116882, "equal", 126.420558, 124.854674, 128.006081),
    ]:
        found, level = judge_result(name), get_level(name)
        assert found.verdict == verdict
        assert found.statistic == pytest.approx(t, abs=1e-6)
        interval = level.estimate(0.97)
        numbers = [interval.mean, interval.low, interval.high]
        assert numbers == pytest.approx([score, low, high], rel=1e-7)
        assert level.is_charged == (verdict == "late") == (not level.loadings)


def test_early_results_have_no_score_and_the_rest_a_rank() -> None:
    found = judge_result("E")
    assert (found.verdict, measure_by_hand("E")) == ("early", None)
    assert found.statistic == pytest.approx(-5.818309, abs=1e-6)
    # Of six pairs Holm tells P and Q apart. R has rank 2 because Q, with a smaller score, has.
    order = sorted("PQRT", key=lambda name: get_level(name).log_mean)
    levels = [get_level(name) for name in order]
    assert [order[a] + order[b] for a, b in comparison.find_different_pairs(levels)] == ["PQ"]
    ranks = {name: rank.value for name, rank in zip(order, rank_levels(levels), strict=True)}
    assert ranks == {"P": 1, "T": 1, "Q": 2, "R": 2}


def test_comparisons() -> None:
    for pair, value, low, high, p in [
        ("PQ", 1.055116, 1.039174, 1.071302, 0.000039052),
        ("PR", 1.061881, 1.015599, 1.128066, 0.018125494),
        ("RT", 0.947208, 0.907984, 0.993206, 0.029035258),
        ("QT", 0.953282, 0.915835, 0.992260, 0.021519997),
        ("PT", 1.005823, 0.966280, 1.046984, 0.766587),
        ("QR", 1.006412, 0.963289, 1.052596, 0.742342),
    ]:
        first, second = map(get_level, pair)
        found = ratio(first, second)
        assert [found.value, found.low, found.high] == pytest.approx([value, low, high], abs=6e-7)
        (chance,) = find_probabilities((first, second), np.array([0]), np.array([1]))
        assert chance == pytest.approx(p, rel=1e-4)
        assert found.is_difference == (p < 0.05)


def test_times_are_compared_as_such_and_pairs_have_a_resolution() -> None:
    scored = get_level("P")
    assert scored.own is not None
    time = Level(scored.own.log_mean + math.log(2), 1e-6, 4, 5, "time")
    assert ratio(scored, time).value == pytest.approx(2)
    assert ratio(time, scored).value == pytest.approx(0.5)
    # exp((t(0.975; 2N − 2) + 0.85) · σ · √(2/N)) − 1, with σ = 2% and N = 10: 2.7%.
    spread = 0.02 * math.sqrt(9 / 10)
    level = average([spread if run % 2 else -spread for run in range(10)])
    assert level.resolution == pytest.approx(math.exp((2.100922 + 0.85) * 0.02 / math.sqrt(5)) - 1)
    assert average([3.0]).resolution is None
