"""Scores: the olympic mean of the times of a result's runs, with Yuen's interval (rule T20).

Pure: no file is read. A result with an error finding has no number at all.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compliance.finding import Finding
from compliance.runlog import RunLog
from rules.definition import Definition

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Score:
    """A scored result, in minutes. ``low`` and ``high`` are None where too few runs remain."""

    minutes: float
    low: float | None
    high: float | None
    runs: int
    required: int
    converged: int


@dataclass(frozen=True)
class Provisional:
    """Fewer runs than required, and no error: a mean of the converged runs so far, no score."""

    minutes_so_far: float | None
    runs: int
    required: int
    converged: int


@dataclass(frozen=True)
class Rejected:
    """A result with errors. There is no number, only the reasons."""

    findings: tuple[Finding, ...]
    runs: int
    required: int
    converged: int


def score(
    runs: Sequence[RunLog], definition: Definition, findings: Iterable[Finding]
) -> Score | Provisional | Rejected:
    """Score a result by its logs and by everything that was found about it."""
    required = definition.runs.required
    minutes = [run_minutes(run) for run in runs]
    converged = [value for value in minutes if math.isfinite(value)]
    counted = (len(runs), required, len(converged))
    errors = tuple(finding for finding in findings if finding.is_error)
    if errors:
        return Rejected(errors, *counted)
    if len(runs) < required:
        return Provisional(_mean(converged) if converged else None, *counted)
    dropped = definition.runs.drop_fastest, definition.runs.drop_slowest
    mean, half_width = trimmed_mean(minutes, *dropped)
    if half_width is None:
        return Score(mean, None, None, *counted)
    return Score(mean, max(0.0, mean - half_width), mean + half_width, *counted)


def run_minutes(run: RunLog) -> float:
    """Time of a run in minutes; infinite for one that did not converge: it is the slowest."""
    if not run.converged or run.seconds is None:
        return math.inf
    return run.seconds / 60


def trimmed_mean(
    values: Sequence[float], drop_lowest: int, drop_highest: int, confidence: float = CONFIDENCE
) -> tuple[float, float | None]:
    """The trimmed mean and the half width of Yuen's interval for it.

    With h values left of n, the standard error is sqrt(S / (h (h - 1))): S is the sum of squared
    deviations of the *winsorised* values, in which each dropped one is replaced by its nearest kept
    one, so that a dropped infinity costs nothing but its place. The interval is Student's with
    h - 1 degrees of freedom (K. K. Yuen, Biometrika 61 (1974) 165). The half width is None where
    h is 1. Raises ValueError where nothing or an infinite value is left.
    """
    kept = _kept(values, drop_lowest, drop_highest)
    mean = _mean(kept)
    if len(kept) == 1:
        return mean, None
    winsorised = [kept[0]] * drop_lowest + kept + [kept[-1]] * drop_highest
    centre = _mean(winsorised)
    squares = math.fsum((value - centre) ** 2 for value in winsorised)
    standard_error = math.sqrt(squares / (len(kept) * (len(kept) - 1)))
    return mean, _student_quantile(len(kept) - 1, confidence) * standard_error


def olympic_mean(values: Sequence[float], drop_lowest: int, drop_highest: int) -> float:
    """The trimmed mean alone. Raises ValueError where nothing or an infinite value is left."""
    return _mean(_kept(values, drop_lowest, drop_highest))


def _kept(values: Sequence[float], drop_lowest: int, drop_highest: int) -> list[float]:
    ordered = sorted(values)
    kept = ordered[drop_lowest : len(ordered) - drop_highest]
    if not kept or not all(map(math.isfinite, kept)):
        raise ValueError(f"no finite values are left of {len(values)}")
    return kept


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _student_quantile(degrees: int, confidence: float) -> float:
    from scipy.special import stdtrit  # here: only a score needs scipy, and scipy.stats is slow

    return float(stdtrit(degrees, (1 + confidence) / 2))
