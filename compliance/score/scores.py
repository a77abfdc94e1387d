"""Scores: the olympic mean of the times of a result's runs, with Yuen's interval (rule T20), or
that of latencies and of images per second where a benchmark generates (rule T26).

Pure: no file is read. A result with an error finding has no number at all.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compliance.finding import Finding
from compliance.read.summary import RunSummary
from rules.definition import Definition, Runs
from rules.generation import METRICS
from rules.rounds import RoundBenchmark

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
class Estimate:
    """A mean with its interval, whose ends are None where too few runs remain."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class GenerationScore:
    """A scored result of a benchmark that generates: the scores of rule T26 by name."""

    scores: Mapping[str, Estimate]
    runs: int
    required: int
    converged: int


@dataclass(frozen=True)
class Provisional:
    """Fewer runs than required, and no error: means of the converged runs so far, no score."""

    minutes_so_far: float | None
    runs: int
    required: int
    converged: int
    generation_so_far: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejected:
    """A result with errors. There is no number, only the reasons."""

    findings: tuple[Finding, ...]
    runs: int
    required: int
    converged: int


def score(
    runs: Sequence[RunSummary], definition: Definition, findings: Iterable[Finding]
) -> Score | GenerationScore | Provisional | Rejected:
    """Score a result by its logs and by everything that was found about it."""
    is_generation = definition.kind == "generate"
    required = definition.runs.required
    minutes = [run.minutes for run in runs]
    converged = [value for value in minutes if math.isfinite(value)]
    counted = (len(runs), required, len(converged))
    errors = tuple(finding for finding in findings if finding.is_error)
    if errors:
        return Rejected(errors, *counted)
    if len(runs) < required:
        so_far = _mean(converged) if converged and not is_generation else None
        return Provisional(so_far, *counted, _generation_so_far(runs))
    if is_generation:
        return GenerationScore(_generation_scores(runs, definition.runs), *counted)
    return _trimmed(minutes, definition.runs, counted)


def _generation_scores(runs: Sequence[RunSummary], asked: Runs) -> Mapping[str, Estimate]:
    """Each score by itself: the fastest run by one may not be that by another."""
    found = {}
    for metric in METRICS:
        fastest_first = metric.better == "lower"
        worst = math.inf if fastest_first else 0.0
        values = [run.generation.get(metric.name, worst) for run in runs]
        dropped = (asked.drop_fastest, asked.drop_slowest)[:: 1 if fastest_first else -1]
        found[metric.name] = _estimate(values, *dropped)
    return found


def _generation_so_far(runs: Sequence[RunSummary]) -> Mapping[str, float]:
    measured = [run.generation for run in runs if run.generation]
    names = [metric.name for metric in METRICS] if measured else []
    return {name: _mean([scores[name] for scores in measured]) for name in names}


def historical_score(runs: Sequence[RunSummary], benchmark: RoundBenchmark) -> Score | None:
    """The score that a published result has whatever is found about it, or None.

    None where runs are missing, or more did not converge than are dropped at the slow end. A run
    that was aborted, or whose log does not say how it ended, counts as the slowest: its time is
    never averaged. Google's v0.6 ResNet-50 on tpu-v3-1024 has 2.304 minutes so; the raw time of its
    aborted run would make it 2.273.
    """
    minutes, asked = [run.minutes for run in runs], benchmark.runs
    converged = sum(map(math.isfinite, minutes))
    if len(runs) < asked.required or len(runs) - converged > asked.drop_slowest:
        return None
    return _trimmed(minutes, asked, (len(runs), asked.required, converged))


def _trimmed(minutes: Sequence[float], asked: Runs, counted: tuple[int, int, int]) -> Score:
    found = _estimate(minutes, asked.drop_fastest, asked.drop_slowest)
    return Score(found.mean, found.low, found.high, *counted)


def _estimate(values: Sequence[float], drop_lowest: int, drop_highest: int) -> Estimate:
    mean, half_width = trimmed_mean(values, drop_lowest, drop_highest)
    if half_width is None:
        return Estimate(mean, None, None)
    return Estimate(mean, max(0.0, mean - half_width), mean + half_width)


def energy_joules(runs: Sequence[RunSummary], drop_fastest: int, drop_slowest: int) -> float | None:
    """Return the mean energy of a run over the runs that the score is a mean of (rule T23).

    None where one of those has no power log.
    """
    kept = kept_by_trimming([run.minutes for run in runs], drop_fastest, drop_slowest)
    known = [energy for number in kept if (energy := runs[number].joules) is not None]
    return _mean(known) if known and len(known) == len(kept) else None


def kept_by_trimming(values: Sequence[float], drop_lowest: int, drop_highest: int) -> Sequence[int]:
    """Which values a trimmed mean keeps, by their places; of equal ones the first is the lower."""
    ordered = sorted(range(len(values)), key=lambda number: values[number])
    return ordered[drop_lowest : len(ordered) - drop_highest]


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
    kept = [values[number] for number in kept_by_trimming(values, drop_lowest, drop_highest)]
    if not kept or not all(map(math.isfinite, kept)):
        raise ValueError(f"no finite values are left of {len(values)}")
    return kept


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _student_quantile(degrees: int, confidence: float) -> float:
    from scipy.special import stdtrit  # here: only a score needs scipy, and scipy.stats is slow

    return float(stdtrit(degrees, (1 + confidence) / 2))
