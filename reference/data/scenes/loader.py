"""Batches of scenes for one rank.

Which scenes a batch holds, and how each is turned, is a function of the run's seed and the position
in the stream of training samples only: the same for any number of ranks. A scene has no preferred
direction, so that all eight orientations of its square are used.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from reference.data.order import ORIENTATIONS, SampleStream, Share
from reference.data.scenes.sky import Scenes


class Loader:
    """A loader of scenes for one rank.

    Images are uint8 (n, pixels, pixels, 3), boxes float32 (n, most, 4), labels int64 (n, most), as
    in ``Scenes``.
    """

    def __init__(self, scenes: Scenes, seed: int, share: Share) -> None:
        self.scenes, self.share = scenes, share
        self.stream = SampleStream(seed, scenes.train_samples)

    def next_batch(self, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's share of the global batch after ``samples`` trained samples."""
        first = self.share.find_first(samples)
        rows, codes = self.stream.take(first, self.share.batch)
        images, boxes = orient(self.scenes.images[rows], self.scenes.boxes[rows], codes)
        labels = torch.from_numpy(self.scenes.labels[rows])
        return torch.from_numpy(images), torch.from_numpy(boxes), labels

    def evaluation_batches(self, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield this rank's part of the evaluation set in batches of one shape.

        Every rank has the same number of batches. Each is images, their numbers in the evaluation
        set, int64 (batch,), and which of them count, bool (batch,). Over all ranks every scene
        counts once.
        """
        for numbers, valid in self.share.split_evaluation(self.scenes.evaluation_samples, batch):
            images = torch.from_numpy(self.scenes.images[self.scenes.train_samples + numbers])
            yield images, torch.from_numpy(numbers), torch.from_numpy(valid)


def orient(
    images: np.ndarray, boxes: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Turn images (n, y, x, bands) and their boxes (n, most, 4) by ``codes`` (n,) in [0, 8).

    Bit 0 of a code flips x, bit 1 flips y, bit 2 then exchanges x and y. Boxes of zeros stay so.
    """
    images, boxes = images.copy(), boxes.copy()
    is_box = (boxes[..., 2] > boxes[..., 0])[..., None]
    for code in range(1, ORIENTATIONS):
        which = np.flatnonzero(codes == code)
        turned, moved = images[which], boxes[which]
        if code & 1:
            turned, moved = turned[:, :, ::-1], _flip(moved, 0)
        if code & 2:
            turned, moved = turned[:, ::-1], _flip(moved, 1)
        if code & 4:
            turned, moved = turned.transpose(0, 2, 1, 3), moved[..., [1, 0, 3, 2]]
        images[which], boxes[which] = turned, moved
    return images, np.where(is_box, boxes, np.float32(0))


def _flip(boxes: np.ndarray, axis: int) -> np.ndarray:
    flipped = boxes.copy()
    flipped[..., axis], flipped[..., axis + 2] = 1 - boxes[..., axis + 2], 1 - boxes[..., axis]
    return flipped
