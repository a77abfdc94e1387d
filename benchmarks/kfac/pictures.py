"""Random erasing of parts of pictures."""

import math

import numpy as np
import torch
from torch import Tensor

from benchmarks.resnet50.model import IMAGE_MEAN

AREA = (0.02, 0.25)  # share of the picture, evenly between
ASPECT = 0.3  # height by width is between this and its inverse, evenly in the logarithm


def erased(
    images: Tensor, probability: float, noise: np.random.Generator, first: int, of: int
) -> Tensor:
    """Each picture with ``probability`` without a rectangle, which takes the mean colour of
    ImageNet (Zhong et al. 2017, arXiv:1708.04896; the colour is this suite's choice).

    ``images`` are uint8 (n, height, width, 3), those from ``first`` on of a batch of ``of``, so
    that a picture loses the same on any number of ranks.
    """
    count, height, width, _ = images.shape
    chance, area, slant, top, left = noise.random((5, of))[:, first : first + count]
    area = (AREA[0] + area * (AREA[1] - AREA[0])) * height * width
    aspect = np.exp(math.log(ASPECT) * (1 - 2 * slant))
    rows = np.minimum(np.sqrt(area * aspect).round(), height)
    columns = np.minimum(np.sqrt(area / aspect).round(), width)
    is_gone = _between(top, rows, height)[:, :, None] & _between(left, columns, width)[:, None, :]
    is_gone &= (chance < probability)[:, None, None]
    mean = (255 * torch.tensor(IMAGE_MEAN)).round().to(images)
    return torch.where(torch.from_numpy(is_gone)[..., None].to(images.device), mean, images)


def _between(place: np.ndarray, length: np.ndarray, limit: int) -> np.ndarray:
    """(n, limit): true at ``length`` pixels from a place in [0, 1) of those possible."""
    start = np.floor(place * (limit - length + 1))[:, None]
    pixels = np.arange(limit)[None, :]
    inside: np.ndarray = (pixels >= start) & (pixels < start + length[:, None])
    return inside
