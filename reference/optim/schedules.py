"""Learning-rate schedules, as functions of the samples trained."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

MomentumForm = Literal["scaled", "unscaled"]  # how momentum and rate combine (``lars``)
STEPS = (30 / 90, 60 / 90, 80 / 90)  # of the decay: a tenth each time (Goyal et al. 2017)
COLLAPSED_POWER = 2.0
COLLAPSED_WEIGHT_DECAY = 2.0

DECAYS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "polynomial": lambda part, power: (1 - part) ** power,
        "cosine": lambda part, power: (1 + math.cos(math.pi * part)) / 2,
        "step": lambda part, power: 0.1 ** sum(part >= step for step in STEPS),
    }
)
"""The share of the rate that is left, by name, when ``part`` of the decay in [0, 1] is over; the
polynomial one has a power."""


@dataclass(frozen=True)
class Schedule:
    """A schedule of warm-up, decay and, if configured, collapsed decay at the end.

    The rate rises linearly from ``start`` to ``peak`` over ``warmup_samples`` and then decays,
    with what is left of ``peak - end`` as ``DECAYS`` says, to ``end`` at ``decay_samples``, where
    it stays; with ``decay_samples`` 0 it stays at ``peak``.

    From ``collapse_samples`` on, if that is above 0, the decay is collapsed (Codreanu et al. 2017,
    arXiv:1711.04291; section 6.2.7 of the PRACE guide): within ``collapse_length_samples`` what
    the rate was there falls to 0 with a power of 2, and the weight decay is doubled.
    """

    peak: float
    end: float = 0.0
    start: float = 0.0
    warmup_samples: float = 0
    decay_samples: float = 0
    decay: str = "polynomial"
    power: float = 2.0
    collapse_samples: float = 0
    collapse_length_samples: float = 0

    def rate(self, samples: int) -> float:
        """Return the learning rate of the step that completes ``samples`` training samples."""
        if not self.is_collapsed(samples):
            return self._before_collapse(samples)
        left = 1 - (samples - self.collapse_samples) / self.collapse_length_samples
        return self._before_collapse(self.collapse_samples) * (max(0.0, left) ** COLLAPSED_POWER)

    def weight_decay_factor(self, samples: int) -> float:
        """Return the factor of the weight decay in that step."""
        return COLLAPSED_WEIGHT_DECAY if self.is_collapsed(samples) else 1.0

    def is_collapsed(self, samples: int) -> bool:
        """Return True from the first step that ends after ``collapse_samples`` on."""
        return 0 < self.collapse_samples < samples

    def _before_collapse(self, samples: float) -> float:
        if samples <= self.warmup_samples:
            return self.start + (self.peak - self.start) * linear_warmup(
                samples, self.warmup_samples
            )
        if self.decay_samples <= 0:
            return self.peak
        length = max(1, self.decay_samples - self.warmup_samples)
        part = min(1.0, (samples - self.warmup_samples) / length)
        return self.end + (self.peak - self.end) * DECAYS[self.decay](part, self.power)


def warmup_then_cosine(
    samples: int, *, base: float, end: float, warmup_samples: int, decay_samples: int
) -> float:
    """Return the learning rate of the step that completes ``samples`` training samples.

    The rate rises linearly from 0 to ``base`` over ``warmup_samples``. Then it follows half a
    cosine (Loshchilov & Hutter 2017, equation 5, without restarts) that reaches ``end`` at
    ``decay_samples`` and stays there. With ``decay_samples`` 0 it stays at ``base``.
    """
    schedule = Schedule(
        base, end, warmup_samples=warmup_samples, decay_samples=decay_samples, decay="cosine"
    )
    return schedule.rate(samples)


def inverse_square_root(samples: int, *, peak: float, warmup_samples: int) -> float:
    """Return the learning rate of the step that completes ``samples`` training samples.

    The rate rises linearly from 0 to ``peak`` over ``warmup_samples`` and then falls with the
    inverse square root of the samples (Vaswani et al. 2017, section 5.3). With ``warmup_samples`` 0
    it stays at ``peak``.
    """
    if warmup_samples <= 0:
        return peak
    return peak * min(samples / warmup_samples, math.sqrt(warmup_samples / max(1, samples)))


def warmup_then_drops(
    samples: int,
    *,
    base: float,
    warmup_samples: int,
    warmup_factor: float,
    drops: Sequence[float],
    factor: float = 0.1,
) -> float:
    """Return the learning rate of the step that completes ``samples`` training samples.

    The rate rises linearly, from ``1 - 2 ** -warmup_factor`` of ``base``, to ``base`` at
    ``warmup_samples``. Each of ``drops``, numbers of samples, multiplies it by ``factor`` from the
    next step on. Source: the MLPerf reference of ssd.
    """
    missing = 1 - linear_warmup(samples, warmup_samples)
    reached = sum(samples > drop for drop in drops)
    return base * (1 - missing / 2**warmup_factor) * factor**reached


def exponential_warmup_then_steps(
    samples: int,
    *,
    peak: float,
    warmup_samples: int,
    remain_samples: int,
    interval_samples: int,
    factor: float,
    decays: int,
) -> float:
    """Return the learning rate of the step that completes ``samples`` training samples.

    The rate rises by a factor of 100 over ``warmup_samples``, evenly in its logarithm. From the
    step that begins at ``remain_samples`` on it is multiplied by ``factor``, and again after each
    ``interval_samples``, ``decays`` times in all. With ``interval_samples`` 0 it does not decay.
    Source: MLPerf Training v0.6, reference of GNMT.
    """
    if samples < warmup_samples:
        return peak * math.pow(0.01, 1 - samples / warmup_samples)
    if samples <= remain_samples or interval_samples <= 0:
        return peak
    done = -(-(samples - remain_samples) // interval_samples)
    return peak * math.pow(factor, min(decays, done))


def linear_warmup(samples: float, warmup_samples: float) -> float:
    """Return the factor in (0, 1] of the step that completes ``samples`` training samples.

    It grows linearly and is 1 from ``warmup_samples`` on.
    """
    return min(1.0, samples / warmup_samples) if warmup_samples > 0 else 1.0


@dataclass(frozen=True, kw_only=True)
class DroppedRate:
    """The learning rate of MLPerf's detectors; names are those of its logs where these have them.

    ``opt_learning_rate_drop_stretch`` makes both drops later by so many tenths.
    """

    global_batch_size: int
    opt_base_learning_rate: float
    opt_learning_rate_warmup_steps: int
    opt_learning_rate_warmup_factor: float
    opt_learning_rate_first_drop_samples: int
    opt_learning_rate_second_drop_samples: int
    opt_learning_rate_drop_stretch: int

    def compute_rate(self, samples: int) -> float:
        """Return the learning rate of the step that completes ``samples`` training samples."""
        stretch = 1 + self.opt_learning_rate_drop_stretch / 10
        drops = (
            self.opt_learning_rate_first_drop_samples,
            self.opt_learning_rate_second_drop_samples,
        )
        return warmup_then_drops(
            samples,
            base=self.opt_base_learning_rate,
            warmup_samples=self.opt_learning_rate_warmup_steps * self.global_batch_size,
            warmup_factor=self.opt_learning_rate_warmup_factor,
            drops=[stretch * drop for drop in drops],
        )
