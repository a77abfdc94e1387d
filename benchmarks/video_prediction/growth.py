"""The facts of video_prediction, among them the schedule by which networks grow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cepheid.reference.optim.schedules import warmup_then_cosine
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.hyperparameters import AdamHyperparameters


@dataclass(frozen=True)
class Stage:
    """The state of growth: its ``number`` from 0, and the weight ``alpha`` of its newest layers."""

    number: int
    alpha: float = 1.0

    @property
    def is_fading(self) -> bool:
        """Whether the layers of the stage before are still mixed in."""
        return self.alpha < 1


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(AdamHyperparameters):
    """The hyperparameters of video_prediction."""

    global_batch_size: int
    opt_name: Literal["adam"]
    opt_learning_rate_growth_factor: float
    opt_learning_rate_decay_samples: int
    growth_fading_samples: int
    growth_stable_samples: int
    gan_pixel_weight: float
    gan_penalty_weight: float
    gan_penalty_interval_steps: int
    gan_drift_weight: float
    gan_deviation_span: int
    gan_average_half_life_samples: int

    def find_stage(self, samples: int, stages: int) -> Stage:
        """Return the stage of the step that follows ``samples``; there are ``stages`` of them.

        All stages but the last one take the same number of samples. In the first part of each the
        newest layers fade in; the first stage has nothing to fade.
        """
        length = self.growth_fading_samples + self.growth_stable_samples
        number = min(samples // length, stages - 1) if length else stages - 1
        since = samples - number * length
        if number == 0 or since >= self.growth_fading_samples:
            return Stage(number)
        return Stage(number, since / self.growth_fading_samples)

    def compute_rate(self, samples: int, stage: Stage) -> float:
        """Return the learning rate of the step in a stage that completes ``samples``."""
        return warmup_then_cosine(
            samples,
            base=self.opt_base_learning_rate * self.opt_learning_rate_growth_factor**stage.number,
            end=0.0,
            warmup_samples=0,
            decay_samples=self.opt_learning_rate_decay_samples,
        )

    def find_start(self, number: int) -> int:
        """Return the samples after which the stage ``number`` begins."""
        return number * (self.growth_fading_samples + self.growth_stable_samples)


@dataclass(frozen=True)
class Videos:
    """The facts of a run; ``values`` are its hyperparameters."""

    config: RunConfig
    values: Hyperparameters

    @classmethod
    def read(cls, config: RunConfig) -> "Videos":
        """Return the facts of a configuration."""
        return cls(config, config.read(Hyperparameters))

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the definition says of the networks."""
        return self.config.definition.model

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.facts["widths"])

    @property
    def pixels(self) -> int:
        """The side of the frames of the last stage."""
        return self.find_pixels(Stage(self.stages - 1))

    def find_pixels(self, stage: Stage) -> int:
        """Return the side of the frames of a stage."""
        return int(self.facts["first_pixels"]) << stage.number

    def find_stage(self, samples: int) -> Stage:
        """Return the stage of the step that follows ``samples``."""
        return self.values.find_stage(samples, self.stages)

    def list_starts(self) -> list[int]:
        """Return the samples after which each stage begins, the last one first."""
        return [self.values.find_start(number) for number in range(self.stages - 1, -1, -1)]
