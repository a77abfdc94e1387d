"""Erase random parts of pictures."""

import math

import numpy as np
from torch import Tensor

from cepheid.benchmarks.resnet50.model import IMAGE_MEAN
from cepheid.reference.torch.devices.values import make_constant

MEAN_COLOUR = tuple(round(255 * share) for share in IMAGE_MEAN)
AREA = (0.02, 0.25)  # share of the picture, drawn evenly
ASPECT = 0.3  # height by width lies between this and its inverse, evenly in the logarithm


def erase_rectangles(
    images: Tensor, probability: float, noise: np.random.Generator, first: int, of: int
) -> None:
    """Fill a rectangle of each picture, with ``probability``, with the mean colour of ImageNet.

    It is filled in place. ``images`` are uint8 (n, height, width, 3), numbers ``first`` and
    following of a batch of ``of`` pictures: a picture loses the same rectangle on any number of
    ranks. Source: Zhong et al. 2017, arXiv:1708.04896; the colour is this suite's choice.
    """
    count, height, width, _ = images.shape
    chance, area, slant, top, left = noise.random((5, of))[:, first : first + count]
    area = (AREA[0] + area * (AREA[1] - AREA[0])) * height * width
    aspect = np.exp(math.log(ASPECT) * (1 - 2 * slant))
    rows = np.minimum(np.sqrt(area * aspect).round(), height).astype(int)
    columns = np.minimum(np.sqrt(area / aspect).round(), width).astype(int)
    top = np.floor(top * (height - rows + 1)).astype(int)
    left = np.floor(left * (width - columns + 1)).astype(int)
    mean = make_constant(MEAN_COLOUR, images.device, images.dtype)
    for each in np.flatnonzero(chance < probability):
        across = slice(left[each], left[each] + columns[each])
        images[each, top[each] : top[each] + rows[each], across] = mean
