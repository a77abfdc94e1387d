"""Metrics: their targets, what holds between them (rule T9), and the scores of generation (T26).

The definition's digest does not cover the relations, because they change no result: they follow
from the meaning of the metrics, and an evaluation that breaks one was not computed.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

COUNT_TOLERANCE = 1e-6  # of a share: float32 rounds to 6e-8
EQUAL_TOLERANCE = 1e-5
PRECISION_TOLERANCE = 0.005  # of average precisions, which are no exact function of the overlap
LOSS_TOLERANCE = 0.95  # for losses in bfloat16
EXCESS_ERRORS = 3.0  # standard errors of the interval of an excess


@dataclass(frozen=True)
class QualityTarget:
    """One metric and its target; ``better`` is the direction of improvement."""

    metric: str
    better: Literal["lower", "higher"]
    target: float

    def holds(self, value: float) -> bool:
        """Return True if ``value`` is finite and at least as good as the target."""
        if not math.isfinite(value):
            return False
        return value <= self.target if self.better == "lower" else value >= self.target

    def __str__(self) -> str:
        return f"{self.metric} {'<=' if self.better == 'lower' else '>='} {self.target:g}"


@dataclass(frozen=True)
class Relations:
    """Relations between the metrics of an evaluation.

    ``counted`` are shares of the evaluation set. ``ascending`` are metrics of which none is larger
    than the next. ``means`` are the mean of others, ``distances`` the distance of another metric
    from a number. ``losses`` are mean cross-entropies in nats, each with the accuracy of the same
    predictions: a wrong one has a probability of one half or less, and so a loss of ln 2 or more.
    ``precisions`` are COCO's average precision, that at an overlap of 0.50, and that at 0.75: the
    first is the mean over ten overlaps, 0.50 to 0.95, and a larger one forgives less.
    ``choices`` are mean cross-entropies, each with the entry of ``model`` that says among how many
    classes or words. ``least`` are errors that the noise of the reference's data does not allow.
    ``excesses`` are the largest ``compute_excess`` of several shares, each with the usual one.
    """

    counted: tuple[str, ...] = ()
    ascending: tuple[tuple[str, ...], ...] = ()
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    distances: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    precisions: tuple[tuple[str, str, str], ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    excesses: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def find_wrong_counts(
        self, metrics: Mapping[str, float], samples: int
    ) -> Iterator[tuple[str, float]]:
        """Yield each share that no number of so many samples has, with the nearest that one has."""
        for name in self.counted:
            value = metrics.get(name, math.nan)
            if math.isfinite(value):
                nearest = round(value * samples) / samples
                if abs(value - nearest) > COUNT_TOLERANCE:
                    yield name, nearest

    def find_contradictions(
        self, metrics: Mapping[str, float], samples: int
    ) -> Iterator[tuple[str, str, str]]:
        """Yield each metric that contradicts others, with what it must be by them, in words.

        ``samples`` were evaluated.
        """
        for names in self.ascending:
            for low, high in itertools.pairwise(names):
                if metrics.get(low, -math.inf) > metrics.get(high, math.inf) + EQUAL_TOLERANCE:
                    yield low, f"at most {metrics[high]:g}", f"{high} is {metrics[high]:g}"
        for name, parts in self.means.items():
            mean = math.fsum(metrics.get(part, math.nan) for part in parts) / len(parts)
            if _differ(metrics.get(name, math.nan), mean):
                yield name, f"{mean:g}", f"this is the mean of {', '.join(parts)}"
        for name, (other, origin) in self.distances.items():
            distance = abs(metrics.get(other, math.nan) - origin)
            if _differ(metrics.get(name, math.nan), distance):
                yield name, f"{distance:g}", f"{other} is {metrics[other]:g}, from {origin:g}"
        for name, usual in self.excesses.items():
            shares = {share: metrics.get(share, math.nan) for share in usual}
            if all(0 <= share <= 1 for share in shares.values()):
                excess = compute_largest_excess(shares, usual, samples)
                if _differ(metrics.get(name, math.nan), excess):
                    given = ", ".join(f"{share} {value:g}" for share, value in shares.items())
                    yield name, f"{excess:g}", f"it follows from {given}"
        for name, accuracy in self.losses.items():
            least = LOSS_TOLERANCE * (1 - metrics.get(accuracy, math.nan)) * math.log(2)
            if metrics.get(name, math.nan) < least:
                yield name, f"{least:g} or more", f"{accuracy} is {metrics[accuracy]:g}"
        for name, at_50, at_75 in self.precisions:
            most, least = (metrics.get(of, math.nan) for of in (at_50, at_75))
            lowest, highest = (most + 5 * least) / 10, (most + least) / 2
            away = max(lowest - metrics.get(name, math.nan), metrics.get(name, math.nan) - highest)
            if away > PRECISION_TOLERANCE:
                because = f"{at_50} is {most:g} and {at_75} {least:g}"
                yield name, f"from {lowest:g} to {highest:g}", because


def _differ(value: float, expected: float) -> bool:
    """Return True for two finite numbers that differ by more than rounding."""
    return abs(value - expected) > EQUAL_TOLERANCE * max(1.0, abs(expected))


def compute_largest_excess(
    shares: Mapping[str, float], usual: Mapping[str, float], count: int
) -> float:
    """Return the largest of the excesses of shares, each of ``count``, over the usual ones."""
    return max(compute_excess(share, usual[name], count) for name, share in shares.items())


def compute_excess(share: float, usual: float, count: int) -> float:
    """Return by how much a share at least exceeds a usual one; both are measured on ``count``.

    It is the lower end of Newcombe's interval for a difference (1998, method 10), three standard
    errors wide, in which true galaxies have an excess above 0 with a probability of 0.1%.
    """
    least, _ = _find_wilson_interval(share, count)
    _, most = _find_wilson_interval(usual, count)
    return share - usual - math.hypot(share - least, most - usual)


def _find_wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Return the ends of Wilson's interval of a share of ``count``."""
    squares = EXCESS_ERRORS**2
    middle = share + squares / (2 * count)
    half = EXCESS_ERRORS * math.sqrt(share * (1 - share) / count + squares / (4 * count**2))
    scale = 1 + squares / count
    return (middle - half) / scale, (middle + half) / scale


def parse_relations(facts: Mapping[str, Any]) -> Relations:
    """Read the section ``relations`` of a definition."""
    return Relations(
        tuple(facts.get("counted", ())),
        tuple(map(tuple, facts.get("ascending", ()))),
        {name: tuple(parts) for name, parts in facts.get("means", {}).items()},
        {
            name: (distance["of"], float(distance["from"]))
            for name, distance in facts.get("distances", {}).items()
        },
        dict(facts.get("losses", {})),
        tuple((ap, at_50, at_75) for ap, at_50, at_75 in facts.get("precisions", ())),
        dict(facts.get("choices", {})),
        dict(facts.get("least", {})),
        {name: dict(usual) for name, usual in facts.get("excesses", {}).items()},
    )


@dataclass(frozen=True)
class Metric:
    """The name of a score, its better direction, and its heading in a table."""

    name: str
    better: Literal["lower", "higher"]
    heading: str


METRICS = (
    Metric("latency_ms_p50", "lower", "p50 ms"),
    Metric("latency_ms_p90", "lower", "p90 ms"),
    Metric("latency_ms_p99", "lower", "p99 ms"),
    Metric("images_per_second", "higher", "images/s"),
)
"""The scores; results are ranked by the last one."""
PERCENTILES = {"latency_ms_p50": 50, "latency_ms_p90": 90, "latency_ms_p99": 99}
REQUESTS_FOR_P99 = 1_000  # of a run; of fewer, its slowest hundredth is chance


def compute_generation_scores(
    images: Sequence[int], seconds: Sequence[Sequence[float]]
) -> Mapping[str, float]:
    """Return the scores of a run.

    ``seconds[i]`` holds the seconds of each repetition that generated ``images[i]`` images. The
    counts rise and the times are positive. Latency is the time for the smallest count. Images per
    second are all images of the largest count over all of their seconds. The 99th percentile
    needs ``REQUESTS_FOR_P99`` repetitions.
    """
    latencies, largest = seconds[0], seconds[-1]
    scores = {
        name: 1000 * percentile(latencies, percent)
        for name, percent in PERCENTILES.items()
        if percent < 99 or len(latencies) >= REQUESTS_FOR_P99
    }
    rate = images[-1] * len(largest) / math.fsum(largest)
    return MappingProxyType({**scores, "images_per_second": rate})


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` percent of ``values`` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
