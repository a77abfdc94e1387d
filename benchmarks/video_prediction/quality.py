"""How good predicted frames are: SSIM, PSNR and sharpness, per frame and over all."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

SIGMA, RADIUS = 1.5, 5  # pixels: the window of 11 x 11 of Wang et al. 2004
STABILITY = (0.01**2, 0.03**2)  # for a range of 1
LEAST_ERROR = 1e-10  # mean square: 100 dB


@cache
def make_window(pixels: int) -> Tensor:
    """Return the Gaussian window along an axis, as a matrix (pixels, pixels), float64.

    At the edges frames go on as their own mirror images.
    """
    offsets = torch.arange(-RADIUS, RADIUS + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / SIGMA) ** 2)
    places = torch.arange(pixels)[:, None] + offsets.long()
    mirrored = torch.remainder(places, 2 * pixels)
    mirrored = torch.where(mirrored < pixels, mirrored, 2 * pixels - 1 - mirrored)
    window = torch.zeros(pixels, pixels, dtype=torch.float64)
    return window.scatter_add_(1, mirrored, (weights / weights.sum()).expand(pixels, -1))


def compute_ssim(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the mean structural similarity of frames (…, y, x) in [0, 1], one each (…).

    Wang et al. 2004 (doi:10.1109/TIP.2003.819861), equation 13, as scikit-image has it with
    ``gaussian_weights=True, use_sample_covariance=False``, but with the pixels near the edges.
    """
    predicted, true = predicted.double(), true.double()
    down, across = (make_window(side).to(true.device) for side in true.shape[-2:])

    def blur(frames: Tensor) -> Tensor:
        return down @ frames @ across.T

    one, other = blur(predicted), blur(true)
    variances = blur(predicted.square()) + blur(true.square()) - one.square() - other.square()
    covariance = blur(predicted * true) - one * other
    first, second = STABILITY
    similar = (2 * one * other + first) * (2 * covariance + second)
    similar /= (one.square() + other.square() + first) * (variances + second)
    return similar.mean(dim=(-2, -1))


def compute_psnr(predicted: Tensor, true: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of frames (…, y, x) in [0, 1] in dB, one each (…)."""
    errors = (predicted.double() - true.double()).square().mean(dim=(-2, -1))
    return -10 * errors.clamp(min=LEAST_ERROR).log10()


def measure_edges(frames: Tensor) -> Tensor:
    """Return the sum of squared differences of neighbouring pixels of frames (…, y, x), (…)."""
    frames = frames.double()
    across, down = frames.diff(dim=-1).square(), frames.diff(dim=-2).square()
    return across.sum(dim=(-2, -1)) + down.sum(dim=(-2, -1))


@dataclass(frozen=True)
class Scores:
    """Sums over clips for each predicted frame: a row of (time,) for each of SUMMED, float64."""

    sums: Tensor

    @classmethod
    def measure(cls, predicted: Tensor, true: Tensor) -> "Scores":
        """Return the scores of clips (n, channels, time, y, x) in [0, 1]; channels are averaged."""
        each = (
            compute_ssim(predicted, true),
            compute_psnr(predicted, true),
            measure_edges(predicted),
            measure_edges(true),
            torch.ones(true.shape[:3], dtype=torch.float64, device=true.device),
        )
        return cls(torch.stack([values.sum(dim=(0, 1)) for values in each]))

    def __add__(self, other: "Scores") -> "Scores":
        return Scores(self.sums + other.sums)

    def summarize(self) -> Mapping[str, float]:
        """Return means over all frames, the PSNR of the first and the last one, and the sharpness.

        The sharpness is the root mean square of the differences of neighbouring pixels in the last
        frames, over that of the truth; 1 is right. What is uncertain grows with time, and so does
        the blur of a prediction that averages over it.
        """
        ssim, psnr, edges, true_edges, count = self.sums
        total = float(count.sum())
        sharpness = float((edges[-1] / true_edges[-1]).sqrt())
        sharpness = sharpness if math.isfinite(sharpness) else 0.0
        return {
            "ssim": float(ssim.sum()) / total,
            "sharpness_error": abs(sharpness - 1),
            "sharpness": sharpness,
            "psnr": float(psnr.sum()) / total,
            "psnr_first": float(psnr[0] / count[0]),
            "psnr_last": float(psnr[-1] / count[-1]),
        }


def copy_last(past: Tensor, count: int) -> Tensor:
    """Return the last of frames (n, channels, time, y, x), ``count`` times: a baseline."""
    return past[:, :, -1:].expand(-1, -1, count, -1, -1)


def extrapolate(past: Tensor, count: int) -> Tensor:
    """Return frames that go on as the last two of (n, channels, time, y, x): a baseline."""
    steps = torch.arange(1, count + 1, device=past.device).view(1, 1, -1, 1, 1)
    change = past[:, :, -1:] - past[:, :, -2:-1]
    return (past[:, :, -1:] + steps * change).clamp(0, 1)
