"""Scores by hand: examples of rules T20 to T22, computed apart from this code, to six digits."""

import math
from statistics import fmean, variance

import numpy as np
import pytest

from cepheid.compliance.score import comparison
from cepheid.compliance.score.comparison import find_probabilities, rank_levels, ratio
from cepheid.compliance.score.convergence import Convergence, Expected, Loading, interpolate, judge
from cepheid.compliance.score.levels import Level, average, measure_score
from tests.compliance.asserting import require

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


def measure(name: str) -> Level | None:
    """The level of a result in seconds instead of minutes."""
    paces, crossings, _ = RESULTS[name]
    seconds = [60 * pace / 1000 for pace in read(paces)]
    return measure_score(seconds, judge_result(name), read(crossings))


def get_level(name: str) -> Level:
    return require(measure(name))


def is_close(found: float | None, expected: float) -> bool:
    return found == pytest.approx(expected, rel=1e-6)


def test_what_the_reference_needs() -> None:
    assert is_close(A.mean, 62410.272731)
    assert is_close(B.mean, 72217.623970)
    assert A.scatter == pytest.approx(0.041972, abs=5e-7)
    assert A.find_limits(5) == pytest.approx((58490.6759, 65948.1002), rel=1e-7)
    assert B.find_limits(5) == pytest.approx((67884.2847, 76118.1345), rel=1e-7)


def test_between_two_batch_sizes() -> None:
    found = require(interpolate([A, B], 96))
    assert [one.share for one in found.loadings] == pytest.approx([0.415037, 0.584963], abs=1e-6)
    assert is_close(found.mean, 67972.800890)
    assert is_close(found.scatter, 0.04085424)
    assert found.find_error(10**12) == pytest.approx(0.00923093, rel=1e-5)
    assert is_close(found.find_error(5), 0.02047007)
    assert found.degrees == 9
    assert found.find_limits(5) == pytest.approx((64158.2450, 71393.2902), rel=1e-7)


@pytest.mark.parametrize(
    ("name", "t", "verdict", "score", "low", "high"),
    [
        ("P", -0.345801, "equal", 125.688716, 123.752639, 127.655083),
        ("Q", -0.023372, "equal", 132.616152, 130.607459, 134.655739),
        ("R", 4.867502, "late", 133.466492, 127.943788, 139.227585),
        ("T", 0.116882, "equal", 126.420558, 124.854674, 128.006081),
    ],
)
def test_scores(
    name: str, t: float, verdict: str, score: float, low: float, high: float
) -> None:  # the six columns of the table
    found, level = judge_result(name), get_level(name)
    assert found.verdict == verdict
    assert found.statistic == pytest.approx(t, abs=1e-6)
    interval = level.estimate(0.97)
    numbers = [interval.mean, interval.low, interval.high]
    assert numbers == pytest.approx([score, low, high], rel=1e-7)
    assert level.is_charged == (verdict == "late") == (not level.loadings)


def test_an_early_result_has_no_score() -> None:
    found = judge_result("E")
    assert (found.verdict, measure("E")) == ("early", None)
    assert found.statistic == pytest.approx(-5.818309, abs=1e-6)


@pytest.mark.parametrize(
    ("pair", "value", "low", "high", "p"),
    [
        ("PQ", 1.055116, 1.039174, 1.071302, 0.000039052),
        ("PR", 1.061881, 1.015599, 1.128066, 0.018125494),
        ("RT", 0.947208, 0.907984, 0.993206, 0.029035258),
        ("QT", 0.953282, 0.915835, 0.992260, 0.021519997),
        ("PT", 1.005823, 0.966280, 1.046984, 0.766587),
        ("QR", 1.006412, 0.963289, 1.052596, 0.742342),
    ],
)
def test_comparisons(pair: str, value: float, low: float, high: float, p: float) -> None:
    first, second = map(get_level, pair)
    found = ratio(first, second)
    assert [found.value, found.low, found.high] == pytest.approx([value, low, high], abs=6e-7)
    (chance,) = find_probabilities((first, second), np.array([0]), np.array([1]))
    assert chance == pytest.approx(p, rel=1e-4)
    assert found.is_difference == (p < 0.05)


def test_ranks_of_a_table() -> None:
    """Of six pairs Holm tells P and Q apart. R has rank 2 because Q, with a smaller score, has."""
    order = sorted("PQRT", key=lambda name: get_level(name).log_mean)
    levels = [get_level(name) for name in order]
    assert [order[a] + order[b] for a, b in comparison.find_different_pairs(levels)] == ["PQ"]
    ranks = {name: rank.value for name, rank in zip(order, rank_levels(levels), strict=True)}
    assert ranks == {"P": 1, "T": 1, "Q": 2, "R": 2}


def test_a_score_and_a_time_are_compared_by_their_own_times() -> None:
    scored = get_level("P")
    assert scored.own is not None
    time = Level(scored.own.log_mean + math.log(2), 1e-6, 4, 5, "time")
    assert ratio(scored, time).value == pytest.approx(2)
    assert ratio(time, scored).value == pytest.approx(0.5)


def test_the_resolution_is_what_a_pair_shows() -> None:
    """exp((t(0.975; 2N − 2) + 0.85) · σ · √(2/N)) − 1, with σ = 2% and N = 10: 2.7%."""
    spread = 0.02 * math.sqrt(9 / 10)
    level = average([spread if run % 2 else -spread for run in range(10)])
    assert level.resolution == pytest.approx(math.exp((2.100922 + 0.85) * 0.02 / math.sqrt(5)) - 1)
    assert average([3.0]).resolution is None
