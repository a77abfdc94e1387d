"""Random changes of the colours of images: brightness, contrast, saturation and hue.

Each image has changes of its own, in an order of its own. What they are is a function of the run's
seed and the position in the stream of samples. The changes are those that torchvision names so,
without its rounding to 256 levels between them.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import Tensor

from cepheid.reference.data.random_streams import draw_rows

GREY = (0.299, 0.587, 0.114)  # the luma of ITU-R BT.601
SMALLEST_CHROMA = 1e-12


@dataclass(frozen=True)
class Strengths:
    """The largest changes: brightness, contrast and saturation by up to so much of themselves.

    ``hue`` is in turns of the colour circle. The order is that of ``CHANGES``.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0


@dataclass(frozen=True)
class Jitter:
    """Changes of n images: a factor or a turn for each of ``CHANGES``, float32 (n, 4).

    ``order`` (n, 4) has the number of the change that comes first, second, third and last.
    """

    amounts: Tensor
    order: Tensor


def draw_jitter(strengths: Strengths, seed: int, first: int, count: int) -> Jitter:
    """Draw the changes for ``count`` positions of the stream from ``first`` on."""
    drawn = draw_rows(seed, "colour", range(first, first + count), 2 * len(CHANGES))
    centres = np.array([1.0, 1.0, 1.0, 0.0])
    amounts = centres + np.array(astuple(strengths)) * (2 * drawn[:, :4] - 1)
    amounts[:, :3] = np.maximum(amounts[:, :3], 0)
    return Jitter(torch.from_numpy(amounts).float(), torch.from_numpy(drawn[:, 4:].argsort(axis=1)))


def change_colours(images: Tensor, jitter: Jitter) -> Tensor:
    """Return images with other colours, uint8 (n, y, x, 3) as before."""
    changed = torch.empty_like(images)
    amounts, orders = jitter.amounts.tolist(), jitter.order.tolist()
    # One image after the other: its planes stay in a processor's cache through all changes.
    for image, own, order, target in zip(images, amounts, orders, changed, strict=True):
        planes = image.permute(2, 0, 1).contiguous().float().div_(255)
        for number in order:
            CHANGES[number](planes, own[number])
        target.copy_(planes.mul_(255).round_().to(torch.uint8).permute(1, 2, 0))
    return changed


def _change_brightness(image: Tensor, factor: float) -> None:
    image.mul_(factor).clamp_(0, 1)


def _change_contrast(image: Tensor, factor: float) -> None:
    """Move all values away from the image's mean grey, or towards it."""
    mean = _compute_grey(image).mean()
    image.mul_(factor).add_((1 - factor) * mean).clamp_(0, 1)


def _change_saturation(image: Tensor, factor: float) -> None:
    """Move each pixel away from its grey, or towards it."""
    grey = _compute_grey(image)
    image.mul_(factor).add_(grey, alpha=1 - factor).clamp_(0, 1)


def _turn_hue(image: Tensor, turn: float) -> None:
    """Turn the colour circle; value and saturation of HSV stay.

    With value V, chroma C and hue H in sixths of a turn, a channel is
    V − C·max(0, min(k, 4 − k, 1)), where k = (n + H) mod 6 and n is 5 for red, 3 for green, 1 for
    blue.
    """
    red, green, blue = image
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    of_green = torch.sub(blue, red).add_(chroma, alpha=2)
    of_blue = torch.sub(red, green).add_(chroma, alpha=4)
    hue = torch.where(value == green, of_green, of_blue)
    hue = torch.where(value == red, green - blue, hue)
    hue.div_(chroma.clamp(min=SMALLEST_CHROMA)).add_(6 * turn)
    for plane, n in zip(image, (5.0, 3.0, 1.0), strict=True):
        k = hue + n
        k.sub_(torch.floor(k / 6), alpha=6)
        share = torch.minimum(k, 4 - k).clamp_(0, 1)
        torch.addcmul(value, chroma, share, value=-1, out=plane)


def _compute_grey(image: Tensor) -> Tensor:
    grey = GREY[0] * image[0]
    return grey.add_(image[1], alpha=GREY[1]).add_(image[2], alpha=GREY[2])


CHANGES: tuple[Callable[[Tensor, float], None], ...] = (
    _change_brightness,
    _change_contrast,
    _change_saturation,
    _turn_hue,
)
"""Each changes an image in place, (3, y, x) in [0, 1]."""
