"""What benchmarks on square images share: noise in their shapes, and the scale of their pixels."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

NOISE_BOXES = 4  # in each image of noise


def draw_images(count: int, pixels: int, generator: torch.Generator, channels: int = 3) -> Tensor:
    """Return random images, uint8 (count, pixels, pixels, channels)."""
    shape = (count, pixels, pixels, channels)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def draw_boxes(count: int, generator: torch.Generator) -> Tensor:
    """Return NOISE_BOXES boxes for each image: corners in shares of its side, (n, boxes, 4)."""
    sides = torch.rand(count, NOISE_BOXES, 2, generator=generator) / 2
    return torch.cat((sides, sides + 0.3), dim=2)


def keep_pixel_moments(network: nn.Module, facts: Mapping[str, Any]) -> None:
    """Let ``network`` keep mean and deviation of pixels, on its device but not in its state."""
    for name in ("pixel_mean", "pixel_deviation"):
        network.register_buffer(name, torch.tensor(facts[name]), persistent=False)


def scale_pixels(network: Any, images: Tensor) -> Tensor:
    """Return images as float32 (n, channels, y, x), channels last in memory."""
    scaled: Tensor = (images.float() - network.pixel_mean) / network.pixel_deviation
    return scaled.permute(0, 3, 1, 2)
