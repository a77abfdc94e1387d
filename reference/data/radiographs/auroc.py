"""The area under the ROC curve of each finding.

It is the share of pairs of one drawing with and one without a finding in which the former has the
higher score; ties count half (Mann & Whitney 1947; Hanley & McNeil 1982). Ranks of scipy give it
exactly. It is no mean over parts of the data, so scores of all ranks are gathered first.
"""

import numpy as np
import scipy.stats

from cepheid.reference.data.radiographs.layout import FINDINGS

METRICS = tuple(f"auroc_{finding.lower()}" for finding in FINDINGS)
UNDEFINED = 0.5  # of a finding that all or none have: nothing can be told apart
RESAMPLES = 200


def compute_auroc(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the area for each column of scores and labels (n, findings), float64 (findings,)."""
    positive = labels > 0
    with_it, without = positive.sum(axis=0), (~positive).sum(axis=0)
    ranks = scipy.stats.rankdata(scores, axis=0)
    above = (ranks * positive).sum(axis=0) - with_it * (with_it + 1) / 2
    pairs = with_it * without
    return np.where(pairs > 0, above / np.maximum(pairs, 1), UNDEFINED)


def measure_quality(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the mean of the areas as ``auroc``, and each; scores and labels are (n, 14)."""
    areas = compute_auroc(scores, labels)
    return {"auroc": float(areas.mean()), **dict(zip(METRICS, areas.tolist(), strict=True))}


def bootstrap_intervals(scores: np.ndarray, labels: np.ndarray, share: float = 0.95) -> np.ndarray:
    """Return the lower and the upper bound of each area, float64 (2, findings).

    Of RESAMPLES sets of n images that are drawn with replacement, ``share`` lie between them.
    """
    random = np.random.default_rng(0)
    areas = []
    for _ in range(RESAMPLES):
        rows = random.integers(len(scores), size=len(scores))
        areas.append(compute_auroc(scores[rows], labels[rows]))
    return np.quantile(areas, [(1 - share) / 2, (1 + share) / 2], axis=0)


def trace_curve(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the false and the true positive rates of all thresholds, for one finding, (n,)."""
    order = np.argsort(-scores, kind="stable")
    positive = labels[order] > 0
    last_of_ties = np.append(np.diff(scores[order]) != 0, True)
    true, false = np.cumsum(positive)[last_of_ties], np.cumsum(~positive)[last_of_ties]
    false_rate = np.append(0, false) / max(1, false[-1])
    true_rate = np.append(0, true) / max(1, true[-1])
    return false_rate, true_rate
