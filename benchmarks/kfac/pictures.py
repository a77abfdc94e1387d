"""Erase random parts of pictures."""

import math

import numpy as np
import torch
from torch import Tensor

from benchmarks.resnet50.model import IMAGE_MEAN

AREA = (0.02, 0.25)  # share of the picture, drawn evenly
ASPECT = 0.3  # height by width lies between this and its inverse, evenly in the logarithm


def erase_rectangles(
    images: Tensor, probability: float, noise: np.random.Generator, first: int, of: int
) -> Tensor:
    """Fill a rectangle of each picture, with ``probability``, with the mean colour of ImageNet.

    ``images`` are uint8 (n, height, width, 3); they are numbers ``first`` and following of a batch
    of ``of`` pictures, so that a picture loses the same rectangle on any number of ranks. Source:
    Zhong et al. 2017, arXiv:1708.04896; the colour is this suite's choice.
    """
    count, height, width, _ = images.shape
    chance, area, slant, top, left = noise.random((5, of))[:, first : first + count]
    area = (AREA[0] + area * (AREA[1] - AREA[0])) * height * width
    aspect = np.exp(math.log(ASPECT) * (1 - 2 * slant))
    rows = np.minimum(np.sqrt(area * aspect).round(), height)
    columns = np.minimum(np.sqrt(area / aspect).round(), width)
    is_gone = (
        _mask_interval(top, rows, height)[:, :, None]
        & _mask_interval(left, columns, width)[:, None, :]
    )
    is_gone &= (chance < probability)[:, None, None]
    mean = (255 * torch.tensor(IMAGE_MEAN)).round().to(images)
    return torch.where(torch.from_numpy(is_gone)[..., None].to(images.device), mean, images)


def _mask_interval(place: np.ndarray, length: np.ndarray, limit: int) -> np.ndarray:
    """Return a mask, (n, limit), of ``length`` pixels that start at ``place`` in [0, 1)."""
    start = np.floor(place * (limit - length + 1))[:, None]
    pixels = np.arange(limit)[None, :]
    inside: np.ndarray = (pixels >= start) & (pixels < start + length[:, None])
    return inside
