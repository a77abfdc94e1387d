"""The scores of a benchmark that generates (rule T26)."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """The name of a score, its better direction, and its heading in a table."""

    name: str
    better: Literal["lower", "higher"]
    heading: str


METRICS = (
    Metric("latency_ms_p50", "lower", "p50 ms"),
    Metric("latency_ms_p99", "lower", "p99 ms"),
    Metric("images_per_second", "higher", "images/s"),
)
"""The scores; results are ranked by the last one."""


def compute_metrics(
    images: Sequence[int], seconds: Sequence[Sequence[float]]
) -> Mapping[str, float]:
    """Return the scores of a run.

    ``seconds[i]`` holds the seconds of each repetition that generated ``images[i]`` images. The
    counts rise and the times are positive. Latency is the time for the smallest count. Images per
    second is the largest count over the median of its times.
    """
    return MappingProxyType(
        {
            "latency_ms_p50": 1000 * percentile(seconds[0], 50),
            "latency_ms_p99": 1000 * percentile(seconds[0], 99),
            "images_per_second": images[-1] / statistics.median(seconds[-1]),
        }
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` percent of ``values`` do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
