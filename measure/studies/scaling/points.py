"""What is measured at one number of ranks, and the numbers that follow from it. Framework-free.

In every turn the same ranks train in different ways, one after the other, so that other work on the
machine disturbs all of them alike:

alone
    The first rank trains by itself while the others wait.
together
    All ranks train one network, as a run does.
independent
    Every rank trains a network of its own at the same time. Nothing is communicated, so this is
    what the machine gives to so many ranks at most: they share memory and caches.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cepheid.measure.engine.turns import find_middle_half

WEAK, STRONG = "weak", "strong"
INPUTS = ("real", "synthetic")
ALONE, TOGETHER, INDEPENDENT = "alone", "together", "independent"

SHARES: Mapping[str, tuple[str, ...]] = {
    "input": ("data",),
    "compute": ("forward", "backward", "pipeline"),
    "communication": ("communication", "gather"),
    "update": ("update",),
}
"""What the tables call the phases of a step; all others are "other"."""

BOUND = 0.95
"""Input binds where real data reach less than this share of the rate of synthetic data."""


@dataclass(frozen=True)
class Spread:
    """The median of several turns, and the middle half of them."""

    median: float
    first_quartile: float
    third_quartile: float


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles."""
    first, third = find_middle_half(values)
    return Spread(statistics.median(values), first, third)


@dataclass(frozen=True)
class LinkTimes:
    """All-reduces over all ranks, timed alone: bytes and median seconds, a small and a large one.

    ``collectives`` is the number of those in a training step.
    """

    small_bytes: int
    small_seconds: float
    large_bytes: int
    large_seconds: float
    collectives: int


@dataclass(frozen=True)
class Point:
    """The measurement with one number of ranks.

    ``seconds`` has the seconds of a step turn by turn, by arm and input, such as "together, real".
    ``phases_ms`` are the mean milliseconds of the phases of a profiled step over all ranks, and
    ``alone_phases_ms`` those of the first rank alone. ``batch_size`` is that of all ranks together,
    ``alone_batch_size`` that of the first rank alone.
    """

    ranks: int
    batch_size: int
    alone_batch_size: int
    seconds: Mapping[str, tuple[float, ...]]
    phases_ms: Mapping[str, float]
    alone_phases_ms: Mapping[str, float]
    gradient_bytes: int
    link: LinkTimes | None
    implementation: Mapping[str, Any]
    load_before: float

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.ranks

    def as_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> "Point":
        """Return the point that ``as_json`` wrote; raises TypeError or KeyError for other facts."""
        seconds = {name: tuple(map(float, turns)) for name, turns in facts["seconds"].items()}
        link = LinkTimes(**facts["link"]) if facts["link"] else None
        return cls(**{**facts, "seconds": seconds, "link": link})

    @property
    def inputs(self) -> tuple[str, ...]:
        """The kinds of input that were measured, real data first."""
        return tuple(kind for kind in INPUTS if name_arm(TOGETHER, kind) in self.seconds)

    def rates(self, arm: str, kind: str) -> tuple[float, ...]:
        """Return samples per second of all ranks together, turn by turn."""
        batch = self.batch_size if arm == TOGETHER else self.alone_batch_size
        ranks = self.ranks if arm == INDEPENDENT else 1
        return tuple(ranks * batch / seconds for seconds in self.seconds[name_arm(arm, kind)])

    def efficiency(self, kind: str) -> Spread:
        """Return the rate of all ranks over that of the first one alone times their number."""
        return self._over_alone(TOGETHER, kind)

    def ceiling(self) -> Spread | None:
        """Return the efficiency of independent ranks, or None where it was not measured."""
        kind = self.inputs[-1]
        if name_arm(INDEPENDENT, kind) not in self.seconds:
            return None
        return self._over_alone(INDEPENDENT, kind)

    def _over_alone(self, arm: str, kind: str) -> Spread:
        pairs = zip(self.rates(arm, kind), self.rates(ALONE, kind), strict=True)
        return spread([rate / alone / self.ranks for rate, alone in pairs])

    def real_over_synthetic(self) -> Spread | None:
        """Return the rate with real data over that with synthetic, if both were measured."""
        if len(self.inputs) < len(INPUTS):
            return None
        pairs = zip(*(self.rates(TOGETHER, kind) for kind in INPUTS), strict=True)
        return spread([real / synthetic for real, synthetic in pairs])

    @property
    def is_input_bound(self) -> bool | None:
        """Whether three quarters of the turns say that input binds; None if it is not known."""
        ratio = self.real_over_synthetic()
        return None if ratio is None else ratio.third_quartile < BOUND

    @property
    def shares(self) -> dict[str, float]:
        """The shares of a profiled step, by the words of the tables."""
        total = sum(self.phases_ms.values())
        named = {
            name: sum(self.phases_ms.get(phase, 0.0) for phase in phases) / total
            for name, phases in SHARES.items()
        }
        return {**named, "other": 1 - sum(named.values())}


def name_arm(arm: str, kind: str) -> str:
    """Return the name under which the turns of an arm with a kind of input are kept."""
    return f"{arm}, {kind}"


def name_row(point: Point) -> dict[str, Any]:
    """Return the numbers of a table's row, for JSON."""
    kind = point.inputs[0]
    return {
        "ranks": point.ranks,
        "batch_size": point.batch_size,
        "input": kind,
        "samples_per_second": asdict(spread(point.rates(TOGETHER, kind))),
        "efficiency": {each: asdict(point.efficiency(each)) for each in point.inputs},
        "speed_up": point.ranks * point.efficiency(kind).median,
        "ceiling": (found := point.ceiling()) and asdict(found),
        "real_over_synthetic": (ratio := point.real_over_synthetic()) and asdict(ratio),
        "is_input_bound": point.is_input_bound,
        "shares": point.shares,
    }
