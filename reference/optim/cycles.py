"""Cyclic learning rates: one schedule after another, as the PRACE guide's figure 22 has them.

No definition has them, so that no run of `cepheid run` follows them. They are for measurements in
the open division (``cepheid.measure.studies.epochs``) and for a submitter's own task.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cepheid.reference.optim.schedules import Schedule
from cepheid.reference.run.config import RunConfig

Create = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Cycle:
    """A warm-up from ``start`` to ``peak``, and a polynomial decay that ends before it reaches 0.

    The decay would take ``decay_steps`` from the end of the warm-up on; the cycle has ``steps`` in
    all. The last cycle may be a collapse: it sees whole images and multiplies the weight decay.
    """

    steps: int
    peak: float
    power: float
    decay_steps: int
    warmup_steps: int = 0
    start: float = 0.0
    weight_decay_factor: float = 1.0
    whole_images: bool = False

    def make_schedule(self, batch_size: int) -> Schedule:
        """Return the schedule within the cycle, as a function of its samples."""
        return Schedule(
            peak=self.peak,
            start=self.start,
            warmup_samples=self.warmup_steps * batch_size,
            decay_samples=(self.warmup_steps + self.decay_steps) * batch_size,
            power=self.power,
        )


@dataclass(frozen=True)
class CyclicSchedule:
    """Cycles after one another, with the methods of ``Schedule``; the last rate stays."""

    cycles: tuple[Cycle, ...]
    batch_size: int

    @property
    def peak(self) -> float:
        """The highest rate of all cycles."""
        return max(cycle.peak for cycle in self.cycles)

    def rate(self, samples: int) -> float:
        """Return the learning rate of the step that completes ``samples`` training samples."""
        cycle, before = self._find(samples)
        return cycle.make_schedule(self.batch_size).rate(samples - before)

    def weight_decay_factor(self, samples: int) -> float:
        """Return the factor of the weight decay in that step."""
        return self._find(samples)[0].weight_decay_factor

    def is_collapsed(self, samples: int) -> bool:
        """Return True if that step sees whole images."""
        return self._find(samples)[0].whole_images

    def _find(self, samples: int) -> tuple[Cycle, int]:
        """Return the cycle of the step that completes ``samples``, and the samples before it."""
        before = 0
        for cycle in self.cycles[:-1]:
            end = before + cycle.steps * self.batch_size
            if samples <= end:
                return cycle, before
            before = end
        return self.cycles[-1], before


def follow_cycles(create: Create, cycles: Sequence[Mapping[str, Any]]) -> Create:
    """Return a factory of the tasks of ``create`` that follow ``cycles``, the fields of ``Cycle``.

    The shapes of the tasks must have a ``schedule``, as those of resnet50 and kfac do.
    """
    parsed = tuple(Cycle(**fields) for fields in cycles)

    def create_cyclic(config: RunConfig, ranks: Any) -> Any:
        task = create(config, ranks)
        task.shape = replace(task.shape, schedule=CyclicSchedule(parsed, config.global_batch_size))
        return task

    return create_cyclic
