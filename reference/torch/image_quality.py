"""How alike images are: structural similarity and peak signal-to-noise ratio."""

from functools import cache

import torch
from torch import Tensor

SIGMA, RADIUS = 1.5, 5  # pixels: the window of 11 x 11 of Wang et al. 2004
STABILITY = (0.01**2, 0.03**2)  # for a range of 1
LEAST_ERROR = 1e-10  # mean square: 100 dB


@cache
def make_window(pixels: int) -> Tensor:
    """Return the Gaussian window along an axis, as a matrix (pixels, pixels), float64.

    At the edges images go on as their own mirror images.
    """
    offsets = torch.arange(-RADIUS, RADIUS + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / SIGMA) ** 2)
    places = torch.arange(pixels)[:, None] + offsets.long()
    mirrored = torch.remainder(places, 2 * pixels)
    mirrored = torch.where(mirrored < pixels, mirrored, 2 * pixels - 1 - mirrored)
    window = torch.zeros(pixels, pixels, dtype=torch.float64)
    return window.scatter_add_(1, mirrored, (weights / weights.sum()).expand(pixels, -1))


def compute_ssim(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the mean structural similarity of images (…, y, x) in [0, 1], one each (…).

    Wang et al. 2004 (doi:10.1109/TIP.2003.819861), equation 13, as scikit-image has it with
    ``gaussian_weights=True, use_sample_covariance=False``, but with the pixels near the edges.
    """
    predicted, true = predicted.double(), true.double()
    down, across = (make_window(side).to(true.device) for side in true.shape[-2:])

    def blur(images: Tensor) -> Tensor:
        return down @ images @ across.T

    one, other = blur(predicted), blur(true)
    variances = blur(predicted.square()) + blur(true.square()) - one.square() - other.square()
    covariance = blur(predicted * true) - one * other
    first, second = STABILITY
    similar = (2 * one * other + first) * (2 * covariance + second)
    similar /= (one.square() + other.square() + first) * (variances + second)
    return similar.mean(dim=(-2, -1))


def compute_psnr(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of images (…, y, x) in [0, 1] in dB, one each (…)."""
    errors = (predicted.double() - true.double()).square().mean(dim=(-2, -1))
    return -10 * errors.clamp(min=LEAST_ERROR).log10()
