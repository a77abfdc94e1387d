"""Batches of images with boxes, for one rank.

Which images a batch holds, and how each is cut, mirrored and coloured, is a function of the run's
seed and the position in the stream of training samples only: the same for any number of ranks and
workers. Parts, mirror images and changes of colour are drawn for a whole batch, by the steps of
SSD's reference in MLPerf 0.6: cut, mirror, resize without regard to the aspect, change the colours.
"""

from dataclasses import astuple, dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from cepheid.reference.data.detection import colours, crops
from cepheid.reference.data.detection.colours import Jitter, Strengths
from cepheid.reference.data.image_files.threads import ComingBatch, ImageLoader, resize


class Pictures(Protocol):
    """A dataset of images with boxes: rows [0, train) are for training, the next for evaluation."""

    @property
    def train_samples(self) -> int:
        """Return the number of training images."""

    @property
    def evaluation_samples(self) -> int:
        """Return the number of evaluation images."""

    def read_image(self, row: int) -> np.ndarray:
        """Return an image, uint8 (y, x, 3)."""

    def read_boxes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes and labels of rows (n,): float32 (n, most, 4) and int64 (n, most).

        Boxes are left, top, right, bottom in shares of the sides. Where the label is 0 there is
        none, and the box is zeros.
        """


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied. All images become squares of ``pixels``.

    With ``sides``, a shorter and a longer one in pixels, they keep their aspect: the shorter side
    becomes that long, unless the longer one would be too long. The rest of the square is filled
    with the levels ``filling``, to the right and below.

    ``has_parts``: a part of each image is cut out, as ``crops`` says, with ``most_tries``. Half of
    the images are mirrored; where ``has_orientations``, all eight orientations of the square are
    used instead, for images that have no top. With ``mask_pixels`` the masks of the objects come
    too, so many pixels high and wide within their boxes.
    """

    pixels: int
    has_parts: bool = True
    most_tries: int = 1
    has_orientations: bool = False
    mask_pixels: int = 0
    sides: tuple[int, int] | None = None
    filling: tuple[int, int, int] = (0, 0, 0)
    strengths: Strengths = field(default_factory=Strengths)


@dataclass(frozen=True)
class Views:
    """Views of n images: rows and parts, (n,) and (n, 4); codes of ``turn_image``, (n,).

    ``extents`` (n, 2) are the width and height that they get in pixels.
    """

    rows: np.ndarray
    parts: np.ndarray
    codes: np.ndarray
    extents: np.ndarray
    jitter: Jitter | None = None


class Loader(ImageLoader):
    """A loader of ``Pictures`` as an ``Augmentation`` says: images uint8 (n, pixels, pixels, 3).

    Boxes and labels follow, and with ``mask_pixels`` masks, uint8 (n, most, size, size), and the
    width and height of each image in pixels, float32 (n, 2). In evaluation the numbers of
    images in the evaluation set follow instead, int64 (n,), and which of them count, bool (n,).
    """

    def find_extents(self, rows: np.ndarray) -> np.ndarray:
        """Return the width and height in pixels that images ``rows``, (n,), get, int64 (n, 2)."""
        chosen = self.variation
        if chosen.sides is None:
            return np.full((len(rows), 2), chosen.pixels)
        sizes = self.images.read_sizes(rows)[:, ::-1]
        scales = np.minimum(chosen.sides[0] / sizes.min(1), chosen.sides[1] / sizes.max(1))
        return np.maximum(1, np.rint(sizes * scales[:, None])).astype(np.int64)

    @override
    def start_training(self, first: int, count: int) -> ComingBatch:
        rows, codes = self.stream.take(first, count)
        boxes, labels = self.images.read_boxes(rows)
        chosen, seed = self.variation, self.stream.seed
        codes = codes if chosen.has_orientations else codes & 1
        parts = np.tile(crops.WHOLE, (count, 1))
        if chosen.has_parts:
            parts = crops.draw_parts(boxes, labels, seed, first, chosen.most_tries)
            boxes, labels = crops.cut_boxes(boxes, labels, parts)
        jitter = None
        if any(astuple(chosen.strengths)):
            jitter = colours.draw_jitter(chosen.strengths, seed, first, count)
        extents = self.find_extents(rows)
        others = [turn_boxes(boxes, labels, codes), labels]
        if chosen.mask_pixels:
            masks = self.images.read_mask_crops(rows, chosen.mask_pixels)
            others += [turn_masks(masks, codes), extents.astype(np.float32)]
        return self._start(Views(rows, parts, codes, extents, jitter), *others)

    @override
    def start_evaluation(self, numbers: np.ndarray, valid: np.ndarray) -> ComingBatch:
        count, rows = len(numbers), self.images.train_samples + numbers
        parts = np.tile(crops.WHOLE, (count, 1))
        views = Views(rows, parts, np.zeros(count, int), self.find_extents(rows))
        return self._start(views, numbers, valid)

    def _start(self, views: Views, *others: np.ndarray) -> ComingBatch:
        count, size = len(views.rows), self.variation.pixels
        images = torch.empty((count, size, size, 3), dtype=torch.uint8, pin_memory=self.pinned)
        if self.variation.sides:
            images[:] = torch.tensor(self.variation.filling, dtype=torch.uint8)
        return self.fill_batch(images, partial(_fill, images, self.images, views), others)


def _fill(images: Tensor, pictures: Pictures, views: Views, which: range) -> None:
    for at in which:
        whole = pictures.read_image(int(views.rows[at]))
        box = find_pixels(views.parts[at], *whole.shape[:2])
        width, height = views.extents[at].tolist()
        is_same = box == (0, 0, width, height) and whole.shape[:2] == (height, width)
        fitted = (height, width)
        seen = torch.from_numpy(whole) if is_same else resize(whole, box, fitted, "bilinear")
        images[at, :height, :width] = turn_image(seen, int(views.codes[at]))
    if views.jitter:
        places = slice(which.start, which.stop)
        jitter = Jitter(views.jitter.amounts[places], views.jitter.order[places])
        images[places] = colours.change_colours(images[places], jitter)


def find_pixels(part: np.ndarray, height: int, width: int) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom in whole pixels of a part (4,) of an image; never nothing."""
    left, top = int(part[0] * width), int(part[1] * height)
    return left, top, max(int(part[2] * width), left + 1), max(int(part[3] * height), top + 1)


def turn_image(image: Tensor, code: int) -> Tensor:
    """Turn an image (y, x, 3): bit 0 of ``code`` flips x, 1 flips y, 2 then exchanges the two."""
    flipped = image.flip([axis for axis, bit in ((1, 1), (0, 2)) if code & bit])
    return flipped.transpose(0, 1) if code & 4 else flipped


def turn_masks(masks: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Turn masks within boxes (n, most, s, s) as ``turn_image`` turns images, by codes (n,)."""
    turned = masks.copy()
    for axis, bit in ((3, 1), (2, 2)):
        which = np.flatnonzero(codes & bit)
        turned[which] = np.flip(turned[which], axis)
    which = np.flatnonzero(codes & 4)
    turned[which] = turned[which].swapaxes(2, 3)
    return turned


def turn_boxes(boxes: np.ndarray, labels: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Turn boxes (n, most, 4) as ``turn_image`` turns their images, by codes (n,).

    Where the label (n, most) is 0 the box stays zeros.
    """
    turned = boxes.copy()
    for axis, bit in ((0, 1), (1, 2)):
        which = np.flatnonzero(codes & bit)
        turned[which, :, axis], turned[which, :, axis + 2] = (
            1 - turned[which, :, axis + 2],
            1 - turned[which, :, axis],
        )
    which = np.flatnonzero(codes & 4)
    turned[which] = turned[which][..., [1, 0, 3, 2]]
    return np.where((labels > 0)[..., None], turned, boxes.dtype.type(0))
