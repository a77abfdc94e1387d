"""How good predicted frames are: SSIM, PSNR and sharpness, by frame and over all of them."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from cepheid.reference.torch.devices.values import widen
from cepheid.reference.torch.images import compute_psnr, compute_ssim


def measure_edges(frames: Tensor) -> Tensor:
    """Return the sum of squared differences of neighbouring pixels of frames (…, y, x), (…)."""
    frames = widen(frames)
    across, down = frames.diff(dim=-1).square(), frames.diff(dim=-2).square()
    return across.sum(dim=(-2, -1)) + down.sum(dim=(-2, -1))


def measure(predicted: Tensor, true: Tensor) -> Tensor:
    """Return what ``summarize`` needs of clips (n, channels, time, y, x) in [0, 1], (5, time).

    Its rows are sums over clips and channels in float64: they add up over batches and ranks.
    """
    values = (
        compute_ssim(predicted, true),
        compute_psnr(predicted, true),
        measure_edges(predicted),
        measure_edges(true),
        widen(torch.ones(true.shape[:3], device=true.device)),
    )
    return torch.stack([each.sum(dim=(0, 1)) for each in values])


def summarize(sums: Tensor) -> Mapping[str, float]:
    """Return the metrics of the ``sums`` (5, time) of all clips.

    The sharpness is the root mean square of the differences of neighbouring pixels in the last
    frames, over that of the truth; 1 is right. What is uncertain grows with time, and so does the
    blur of a prediction that averages over it.
    """
    ssim, psnr, edges, true_edges, count = sums
    sharpness = float((edges[-1] / true_edges[-1]).sqrt())
    sharpness = sharpness if math.isfinite(sharpness) else 0.0
    return {
        "ssim": float(ssim.sum() / count.sum()),
        "sharpness_error": abs(sharpness - 1),
        "sharpness": sharpness,
        "psnr": float(psnr.sum() / count.sum()),
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
