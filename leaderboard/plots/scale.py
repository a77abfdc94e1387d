"""Axes: where a value stands, and the round values that are written beside it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

TICKS_MAX = 9
LEAST, LARGEST = 1e-100, 1e100  # numbers beyond these are drawn as 0, or not at all


@dataclass(frozen=True, slots=True)
class Tick:
    """Where a tick stands and what it says."""

    place: float
    label: str


def format_tick(value: float) -> str:
    """Return a number as an axis shows it: ``1,000``, ``0.05``, ``2.5M``."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


@dataclass(frozen=True)
class Scale:
    """A map from values to places, ``low`` to ``first`` and ``high`` to ``last``."""

    low: float
    high: float
    is_log: bool
    first: float
    last: float

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high = self._ends
        share = ((math.log10(value) if self.is_log else value) - low) / (high - low)
        return round(self.first + share * (self.last - self.first), 1)

    @cached_property
    def _ends(self) -> tuple[float, float]:
        is_log = self.is_log
        return (math.log10(self.low), math.log10(self.high)) if is_log else (self.low, self.high)

    def make_ticks(
        self, show: Callable[[float], str], given: Sequence[float] = ()
    ) -> tuple[Tick, ...]:
        """Return ticks at the given values if they are few, otherwise at round values."""
        if 0 < len(given) <= TICKS_MAX:
            return tuple(_drop_close([Tick(self(value), show(value)) for value in sorted(given)]))
        values = (
            pick_log_ticks(self.low, self.high) if self.is_log else _pick_ticks(self.low, self.high)
        )
        ticks = [Tick(self(value), show(value)) for value in values]
        return tuple(_drop_close(ticks) if self.first < self.last else ticks)


def _drop_close(ticks: Sequence[Tick]) -> Iterator[Tick]:
    """Drop ticks whose labels would touch that of the tick before, also in letters of a phone."""
    last = -math.inf
    for tick in ticks:
        if abs(tick.place - last) >= 4 + 8 * len(tick.label):
            last = tick.place
            yield tick


def _pick_ticks(low: float, high: float) -> list[float]:
    """Return four to nine round values."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def pick_log_ticks(low: float, high: float, most: int = TICKS_MAX) -> list[float]:
    """Pick round values from ``low`` to ``high``, as many as fit into ``most``."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (
        (1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
        (1, 1.5, 2, 3, 4, 5, 7),
        (1, 2, 5),
        (1, 3),
        (1,),
    ):
        inside = [v for d in decades for step in steps if low <= (v := step * 10.0**d) <= high]
        if len(inside) <= most:
            break
    if len(inside) < 2:
        inside = [value for value in _pick_ticks(low, high) if value > 0]
    return inside[:: math.ceil(len(inside) / most) or 1]
