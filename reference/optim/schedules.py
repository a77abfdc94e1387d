"""Learning-rate schedules, as functions of the samples trained."""

import math


def warmup_then_cosine(
    samples: int, *, base: float, end: float, warmup_samples: int, decay_samples: int
) -> float:
    """The learning rate of the step that completes ``samples`` training samples.

    Linear from 0 to ``base`` over ``warmup_samples``, then half a cosine (Loshchilov & Hutter 2017,
    equation 5, without restarts) that reaches ``end`` at ``decay_samples`` and stays there; with
    ``decay_samples`` 0 the rate stays at ``base``.
    """
    rate = base * linear_warmup(samples, warmup_samples)
    if decay_samples <= 0 or samples <= warmup_samples:
        return rate
    part = min(1.0, (samples - warmup_samples) / max(1, decay_samples - warmup_samples))
    return end + (base - end) * (1 + math.cos(math.pi * part)) / 2


def linear_warmup(samples: int, warmup_samples: int) -> float:
    """Factor in (0, 1] for the step that completes ``samples`` training samples: it grows linearly
    and is 1 from ``warmup_samples`` on."""
    return min(1.0, samples / warmup_samples) if warmup_samples > 0 else 1.0
