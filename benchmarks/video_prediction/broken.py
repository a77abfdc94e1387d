"""Broken variants of video_prediction: each must miss a target within the full budget.

They are mistakes and tricks that the quality targets must detect.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cepheid.benchmarks.video_prediction.growth import Videos
from cepheid.benchmarks.video_prediction.losses import GENERATOR, Ways, compute_loss
from cepheid.benchmarks.video_prediction.task import WORKLOAD, Clips, predict, run_step
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.torch.pieces import Pieces, cut
from cepheid.reference.torch.workload import Seat, Workload

MASK = 1.5  # of the unsharp mask


class ShuffledFutures(Clips):
    """The futures to train on are those of other clips: only what all clips share can be learnt."""

    def __init__(self, shape: Videos, seat: Seat) -> None:
        super().__init__(shape, seat)
        random = make_generator(shape.config.seed, "shuffled futures")
        self.other = random.permutation(self.train_samples)

    def take(self, samples: int, size: int) -> Pieces:
        """Return known frames, and those that follow in other clips."""
        rows, _ = self.stream.take(self.seat.find_first(samples), self.seat.batch)
        return cut(self.read(rows)[0], self.read(self.other[rows])[1], size)


class ShuffledFrames(Clips):
    """The known frames come in random order."""

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return known frames of clips ``rows``, (n,), in an order of each clip's own."""
        past, future = super().read(rows)
        count = past.shape[1]
        orders = [make_generator(0, "frames", int(row)).permutation(count) for row in rows]
        order = torch.from_numpy(np.stack(orders))
        return past[torch.arange(len(rows))[:, None], order], future


class LastFrameOnly(Clips):
    """Only the last known frame is seen: what moves, and how, is hidden."""

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the last known frame of clips ``rows``, (n,), repeated, and those that follow."""
        past, future = super().read(rows)
        return past[:, -1:].expand_as(past), future


def count_samples(trainer: Any) -> Tensor:
    """Count the samples of a step and change nothing; return a loss of 0, a scalar."""
    trainer.samples += trainer.config.global_batch_size
    return torch.zeros((), device=trainer.ranks.device)


def sharpen(frames: Tensor, mask: float = MASK) -> Tensor:
    """Return frames (n, channels, time, y, x) with an unsharp mask, in [0, 1]."""
    wider = functional.pad(frames, (1, 1, 1, 1, 0, 0), "replicate")
    return (frames + mask * (frames - functional.avg_pool3d(wider, (1, 3, 3), 1))).clamp(0, 1)


WITHOUT_CRITIC_UPDATES = WORKLOAD.vary(step=partial(run_step, updated=(GENERATOR,)))
WITHOUT_CRITIC = WITHOUT_CRITIC_UPDATES.vary(
    compute_loss=partial(compute_loss, ways=Ways(score_for_generator=None))
)
VARIANTS: Mapping[str, Workload[Videos]] = {
    "shuffled_futures": WORKLOAD.vary(open_data=ShuffledFutures),
    "frozen": WORKLOAD.vary(step=count_samples),
    "frozen_critic": WITHOUT_CRITIC_UPDATES,
    # The generator learns from the error of pixels alone, and blurs what it cannot know.
    "no_critic": WITHOUT_CRITIC,
    # An unsharp mask is the trick that hides it best.
    "sharpened": WITHOUT_CRITIC.vary(predict=lambda *given: sharpen(predict(*given))),
    "shuffled_frames": WORKLOAD.vary(open_data=ShuffledFrames),
    "last_frame_only": WORKLOAD.vary(open_data=LastFrameOnly),
}
