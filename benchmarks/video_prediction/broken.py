"""Broken variants of video_prediction: each must miss a target within the full budget.

They are mistakes and tricks that the quality targets must detect. ``no_growth`` is none of them:
see the README.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cepheid.benchmarks.video_prediction.hyperparameters import Stage
from cepheid.benchmarks.video_prediction.quality import copy_last
from cepheid.benchmarks.video_prediction.task import GENERATOR, VideoPrediction
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks


class ShuffledFutures(VideoPrediction):
    """The futures to train on are those of other clips: only what all clips share can be learnt."""

    def open_data(self) -> None:
        """Open the data, then permute the futures of the training clips."""
        super().open_data()
        random = make_generator(self.config.seed, "shuffled futures")
        self.other = random.permutation(self.definition.train_samples)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return known frames, and those that follow in other clips, (share, time, y, x, 1)."""
        rows, _ = self.stream.take(self.first_sample, self.batch_per_rank)
        past, _ = self.read(self.training_rows[rows])
        _, future = self.read(self.training_rows[self.other[rows]])
        return past, future


class Frozen(VideoPrediction):
    """The weights of both networks stay as initialised."""

    def step(self) -> Tensor:
        """Count the samples and change nothing; return a loss of 0, a scalar."""
        self.samples += self.config.global_batch_size
        return torch.zeros((), device=self.ranks.device)


class FrozenCritic(VideoPrediction):
    """The critic stays as initialised."""

    updated = (GENERATOR,)


class NoCritic(VideoPrediction):
    """The generator learns from the error of pixels alone, so that it blurs what it cannot know."""

    updated = (GENERATOR,)

    def compute_generator_loss(
        self, past: Tensor, predicted: Tensor, error: Tensor, stage: Stage
    ) -> Tensor:
        """Return the error of pixels with its weight, a scalar."""
        return self.hyperparameters.gan_pixel_weight * error


class ShuffledFrames(VideoPrediction):
    """The known frames come in random order."""

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return known frames of clips ``rows``, (n,), in an order of each clip's own."""
        past, future = super().read(rows)
        count = past.shape[1]
        orders = [make_generator(0, "frames", int(row)).permutation(count) for row in rows]
        order = torch.from_numpy(np.stack(orders)).to(past.device)
        return past[torch.arange(len(rows), device=past.device)[:, None], order], future


class LastFrameOnly(VideoPrediction):
    """Only the last known frame is seen: what moves, and how, is hidden."""

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the last known frame of clips ``rows``, (n,), repeated, and those that follow."""
        past, future = super().read(rows)
        return past[:, -1:].expand_as(past), future


class CopyLast(Frozen):
    """The prediction is the last known frame, and nothing is learnt."""

    def predict(self, inputs: Tensor, /) -> Tensor:
        """Return the last of the known frames, again and again, (n, channels, time, y, x)."""
        return self.predict_simply(copy_last, inputs)


class NoGrowth(VideoPrediction):
    """All layers train from the start, on frames of full size."""

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.hyperparameters = replace(
            self.hyperparameters, growth_fading_samples=0, growth_stable_samples=0
        )


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], VideoPrediction]] = {
    "shuffled_futures": ShuffledFutures,
    "frozen": Frozen,
    "frozen_critic": FrozenCritic,
    "no_critic": NoCritic,
    "shuffled_frames": ShuffledFrames,
    "last_frame_only": LastFrameOnly,
    "copy_last": CopyLast,
}
