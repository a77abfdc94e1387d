"""What a run of a benchmark that generates is scored by (rule T26)."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """How a score is called, which way is better, and how a table heads it."""

    name: str
    better: Literal["lower", "higher"]
    heading: str


METRICS = (
    Metric("latency_ms_p50", "lower", "p50 ms"),
    Metric("latency_ms_p99", "lower", "p99 ms"),
    Metric("images_per_second", "higher", "images/s"),
)
"""The scores, the one that results are ranked by last."""


def compute_metrics(
    images: Sequence[int], seconds: Sequence[Sequence[float]]
) -> Mapping[str, float]:
    """The scores of a run that took ``seconds[i]``, one for each repetition, to generate
    ``images[i]`` images at a time; counts rise, times are positive.

    Latency is the time for the smallest number of images, images per second the largest number over
    the median of its times.
    """
    return MappingProxyType(
        {
            "latency_ms_p50": 1000 * percentile(seconds[0], 50),
            "latency_ms_p99": 1000 * percentile(seconds[0], 99),
            "images_per_second": images[-1] / statistics.median(seconds[-1]),
        }
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of ``values`` that at least ``percent`` percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
