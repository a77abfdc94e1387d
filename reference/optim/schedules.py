"""Learning-rate schedules, as factors of the base rate and functions of the samples trained."""


def linear_warmup(samples: int, warmup_samples: int) -> float:
    """Factor in (0, 1] for the step that completes ``samples`` training samples: it grows linearly
    and is 1 from ``warmup_samples`` on."""
    return min(1.0, samples / warmup_samples) if warmup_samples > 0 else 1.0
