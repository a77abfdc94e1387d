"""Ranks: shared where results cannot be told apart, never better than that of a faster result."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.score.comparison import Level, measure_level, rank_levels, ratio

RUNS = st.lists(st.floats(0.5, 2.0), min_size=5, max_size=8)


def measure(costs: list[float]) -> Level:
    found = measure_level(costs, 1, 1)
    assert found is not None
    return found


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


def test_too_few_runs_for_an_interval_are_ranked_by_their_place() -> None:
    levels = [Level(place, None, 0, 1) for place in (0.0, 0.1, 0.2)]
    assert [found.value for found in rank_levels(levels)] == [1, 2, 3]
    assert rank_levels([]) == []


@given(st.lists(RUNS, min_size=1, max_size=7))
def test_ranks_are_in_order_and_within_their_intervals(results: list[list[float]]) -> None:
    levels = sorted(map(measure, results), key=lambda level: level.log_mean)
    ranks = rank_levels(levels)
    assert ranks[0].value == 1
    assert [found.value for found in ranks] == sorted(found.value for found in ranks)
    for place, found in enumerate(ranks):
        assert 1 <= found.best <= found.value <= len(levels)
        assert found.best <= found.worst
        faster = [ratio(other, levels[place]).low or 0 for other in levels[:place]]
        assert found.best == pytest.approx(1 + sum(low > 1 for low in faster))
