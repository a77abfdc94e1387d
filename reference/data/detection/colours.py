"""Random changes of the colours of images: brightness, contrast, saturation and hue.

Each image has changes of its own, in an order of its own. What they are is a function of the run's
seed and the position in the stream of samples. The changes are those that torchvision names so,
without its rounding to 256 levels between them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from reference.run.seeding import make_generator

GREY = (0.299, 0.587, 0.114)  # the luma of ITU-R BT.601
BLOCK = 256  # samples whose random numbers are drawn together


@dataclass(frozen=True)
class Strengths:
    """The largest changes: brightness, contrast and saturation by up to so much of themselves.

    ``hue`` is in turns of the colour circle.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    @property
    def all(self) -> tuple[float, ...]:
        """The four strengths in the order of ``CHANGES``."""
        return self.brightness, self.contrast, self.saturation, self.hue


@dataclass(frozen=True)
class Jitter:
    """Changes of n images: a factor or a turn for each of ``CHANGES``, float32 (n, 4).

    ``order`` (n, 4) has the number of the change that comes first, second, third and last.
    """

    amounts: Tensor
    order: Tensor


def draw_jitter(strengths: Strengths, seed: int, first: int, count: int) -> Jitter:
    """Draw the changes for ``count`` positions of the stream from ``first`` on."""
    blocks = range(first // BLOCK, (first + count - 1) // BLOCK + 1)
    start = first - blocks.start * BLOCK
    drawn = np.concatenate([_draw_block(seed, block) for block in blocks])[start : start + count]
    centres = np.array([1.0, 1.0, 1.0, 0.0])
    amounts = centres + np.array(strengths.all) * (2 * drawn[:, :4] - 1)
    amounts[:, :3] = np.maximum(amounts[:, :3], 0)
    return Jitter(torch.from_numpy(amounts).float(), torch.from_numpy(drawn[:, 4:].argsort(axis=1)))


def change_colours(images: Tensor, jitter: Jitter) -> Tensor:
    """Return images with other colours, uint8 (n, y, x, 3) as before."""
    values = images.float() / 255
    for place in range(len(CHANGES)):
        for number, change in enumerate(CHANGES):
            which = torch.nonzero(jitter.order[:, place] == number)[:, 0]
            if len(which):
                amounts = jitter.amounts[which, number].view(-1, 1, 1, 1).to(values.device)
                values[which] = change(values[which], amounts).clamp_(0, 1)
    return (values * 255).round_().to(torch.uint8)


def _change_brightness(images: Tensor, factors: Tensor) -> Tensor:
    return images * factors


def _change_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Move all values away from the image's mean grey, or towards it."""
    mean = _compute_grey(images).mean(dim=(1, 2), keepdim=True)
    return torch.lerp(mean, images, factors)


def _change_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Move each pixel away from its grey, or towards it."""
    return torch.lerp(_compute_grey(images), images, factors)


def _turn_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the colour circle; value and saturation of HSV stay.

    With value V, chroma C and hue H in sixths of a turn, a channel is
    V − C·max(0, min(k, 4 − k, 1)), where k = (n + H) mod 6 and n is 5 for red, 3 for green, 1 for
    blue.
    """
    value, largest = images.max(dim=3, keepdim=True)
    chroma = value - images.amin(dim=3, keepdim=True)
    following, last = (torch.gather(images, 3, (largest + step) % 3) for step in (1, 2))
    hue = 2 * largest + (following - last) / chroma.clamp(min=1e-12) + 6 * turns
    k = (torch.tensor([5.0, 3.0, 1.0], device=images.device) + hue) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


def _compute_grey(images: Tensor) -> Tensor:
    return (images @ torch.tensor(GREY, device=images.device))[..., None]


CHANGES: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    _change_brightness,
    _change_contrast,
    _change_saturation,
    _turn_hue,
)


@lru_cache(maxsize=64)
def _draw_block(seed: int, block: int) -> np.ndarray:
    return make_generator(seed, "colour", block).random((BLOCK, 2 * len(CHANGES)))
