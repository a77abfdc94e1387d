"""The hyperparameters of a rate that is warmed up and dropped twice, as detectors have it."""

from dataclasses import dataclass

from cepheid.reference.optim.schedules import warmup_then_drops


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
