"""Ratios and ranks of results: symmetric, without units, honest about few runs."""

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cepheid.compliance.score import comparison
from cepheid.compliance.score.comparison import Ratio, describe, mean_ratio, rank_levels, ratio
from cepheid.compliance.score.levels import Level, average, measure_times

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


def test_a_run_that_did_not_converge_is_the_slowest() -> None:
    assert measure([3, 1, 2, math.inf]).log_mean == measure([3, 1, 2, 1000]).log_mean
    assert measure_times([1, 2, math.inf, math.inf], 1, 1) is None
    assert measure_times([1, 2], 1, 1) is None


def test_three_runs_are_too_few() -> None:
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


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Ratio(1.8, 1.7, 1.9, (5, 5)),
         "a is 1.80 times as fast as b, 95% interval 1.70–1.90 (5 and 5 runs)."),
        (Ratio(0.5, 0.4, 0.625, (5, 7)),
         "b is 2.00 times as fast as a, 95% interval 1.60–2.50 (7 and 5 runs)."),
        (Ratio(1.1, 0.9, 1.3, (5, 5)),
         "No difference between a and b can be claimed from 5 and 5 runs: "
         "ratio 1.10, 95% interval 0.90–1.30."),
    ],
)  # fmt: skip
def test_comparisons_are_described_in_sentences(found: Ratio, text: str) -> None:
    assert describe("a", "b", found) == text


RUNS = st.lists(st.floats(0.5, 2.0), min_size=5, max_size=8)


def rank(*results: list[float]) -> list[tuple[int, str]]:
    levels = sorted(map(measure, results), key=lambda level: level.log_mean)
    return [(found.value, found.interval) for found in rank_levels(levels)]


def test_results_that_cannot_be_told_apart_share_a_rank() -> None:
    one = [1.0, 1.01, 1.02, 1.03, 1.04]
    same = [1.005, 1.015, 1.025, 1.035, 1.045]
    slower = [2.0, 2.02, 2.04, 2.06, 2.08]
    assert rank(one, same, slower) == [(1, "1 to 2"), (1, "1 to 2"), (3, "3")]


def test_a_noisy_result_does_not_overtake_a_faster_one() -> None:
    """The third, of wide spread, is not slower than the first beyond doubt; the second one is."""
    first = [1.0, 1.001, 1.002, 1.003, 1.004]
    second = [1.1, 1.101, 1.102, 1.103, 1.104]
    noisy = [0.2, 0.3, 1.6, 8.0, 9.0]
    assert [value for value, _ in rank(first, second, noisy)] == [1, 2, 2]


def test_what_has_no_interval_is_never_faster() -> None:
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


@pytest.mark.parametrize(
    ("starts", "sittings", "degrees"),
    [
        ([], 0, 9),
        ([None, *range(9)], 0, 9),
        ([run * HOUR for run in range(10)], 1, 9),
        ([run // 3 * 9 * HOUR + run for run in range(10)], 4, 9),
        ([run // 2 * 9 * HOUR + run for run in range(10)], 5, 4),
        ([run * 2 * HOUR for run in range(10)], 10, 9),
    ],
)
def test_from_five_sittings_on_their_means_are_what_scatters(
    starts: list[float | None], sittings: int, degrees: int
) -> None:
    level = average([run // 2 + 0.01 * (run % 2) for run in range(10)], starts)
    assert (level.sittings, level.degrees) == (sittings, degrees)
    assert level.log_mean == pytest.approx(2.005)
    assert level.variance == pytest.approx(0.5 if degrees == 4 else 20.00025 / 90, rel=1e-4)


def test_the_order_of_the_logs_does_not_make_sittings() -> None:
    logs, starts = [0.0, 1.0, 2.0, 3.0, 4.0], [float(4 - run) * 3 * HOUR for run in range(5)]
    assert average(logs, starts) == average(logs[::-1], starts[::-1])


@given(st.lists(RUNS, min_size=1, max_size=7))
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
