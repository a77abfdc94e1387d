"""Areas under ROC curves: exact, with ties, with findings that all or none have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from cepheid.reference.data.radiographs.auroc import bootstrap_intervals, compute_auroc, trace_curve


def compare_all_pairs(scores: np.ndarray, labels: np.ndarray) -> float:
    """The definition, pair by pair."""
    above = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in scores[labels == 1]
        for low in scores[labels == 0]
    ]
    return float(np.mean(above)) if above else 0.5


@given(some.lists(some.tuples(some.integers(0, 5), some.integers(0, 1)), min_size=1, max_size=40))
def test_the_area_is_the_share_of_pairs_in_order(drawn: list[tuple[int, int]]) -> None:
    scores, labels = np.array(drawn, float).T
    expected = compare_all_pairs(scores, labels)
    (area,) = compute_auroc(scores[:, None].astype(np.float32), labels[:, None])
    assert area == pytest.approx(expected, abs=1e-12)
    if 0 < labels.sum() < len(labels):
        false_rate, true_rate = trace_curve(scores, labels)
        assert np.trapezoid(true_rate, false_rate) == pytest.approx(expected, abs=1e-12)


def test_known_areas() -> None:
    scores = np.array([[0.1, 1, 3, 0], [0.4, 2, 2, 0], [0.35, 3, 1, 0], [0.8, 4, 0, 0]])
    labels = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1]])
    assert compute_auroc(scores, labels).tolist() == [0.75, 1.0, 0.0, 0.5]


def test_intervals_hold_the_area_and_are_narrower_with_more_images() -> None:
    random = np.random.default_rng(2)
    widths = []
    for count in (100, 1600):
        labels = random.random((count, 2)) < 0.2
        scores = random.standard_normal((count, 2)) + labels
        low, high = bootstrap_intervals(scores, labels)
        area = compute_auroc(scores, labels)
        assert np.all((low < area) & (area < high))
        widths.append((high - low).mean())
    assert 2.5 < widths[0] / widths[1] < 6  # the square root of 16
