"""How good predicted frames are: SSIM, PSNR, sharpness, and the Fréchet distance of whole clips."""

import math
from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cepheid.reference.torch.devices.values import to_device, widen
from cepheid.reference.torch.images import compute_psnr, compute_ssim

KNOWN = 2  # known frames that a clip of ``describe`` begins with
FILTERS, FEATURES, COMPONENTS = 96, 3 * 96, 40
LEAST_SHARE = 1e-9  # of the first axis' variance: fewer clips than axes leave nothing on the others
LEAST_VARIANCE = 1e-6  # of a feature: nearly the same in all clips


def measure_edges(frames: Tensor) -> Tensor:
    """Return the sum of squared differences of neighbouring pixels of frames (…, y, x), (…)."""
    frames = widen(frames)
    across, down = frames.diff(dim=-1).square(), frames.diff(dim=-2).square()
    return across.sum(dim=(-2, -1)) + down.sum(dim=(-2, -1))


@cache
def make_filters(channels: int, place: torch.device) -> Tensor:
    """Return the filters of ``describe``, float64 (96, channels, 3, 4, 4).

    They are random, without mean and of norm 1. They are copied to a place once, in the warm-up.
    """
    drawn = np.random.RandomState(0).standard_normal((FILTERS, channels, 3, 4, 4))
    drawn -= drawn.mean(axis=(1, 2, 3, 4), keepdims=True)
    norms = np.linalg.norm(drawn.reshape(FILTERS, -1), axis=1)
    return to_device(torch.from_numpy(drawn / norms.reshape(-1, 1, 1, 1, 1)), place)


def describe(clips: Tensor) -> Tensor:
    """Return features of clips (n, channels, time, y, x) in [0, 1], (n, FEATURES).

    They are the mean, the root mean square and the maximum, over all places, of what each of random
    filters sees of light and motion.
    """
    clips = widen(clips)
    filters = make_filters(clips.shape[1], clips.device)
    seen = functional.conv3d(clips, filters, stride=2).relu().flatten(2)
    return torch.cat((seen.mean(2), seen.square().mean(2).sqrt(), seen.amax(2)), dim=1)


def measure(past: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """Return what ``summarize`` needs of clips (n, channels, time, y, x) in [0, 1]: a row of sums.

    ``past`` are the known frames. Sums over clips and channels in float64 add up over batches and
    ranks: five for each frame, then the moments of the features of predicted and of true clips.
    """
    values = (
        compute_ssim(predicted, true),
        compute_psnr(predicted, true),
        measure_edges(predicted),
        measure_edges(true),
        widen(torch.ones(true.shape[:3], device=true.device)),
    )
    sums = [each.sum(dim=(0, 1)) for each in values]
    for frames in (predicted, true):
        features = describe(torch.cat((widen(past[:, :, -KNOWN:]), widen(frames)), dim=2))
        sums += [features.sum(0), (features.T @ features).flatten()]
    return torch.cat(sums)


def count_sums(frames: int) -> int:
    """Return how many sums ``measure`` returns of clips with so many predicted frames."""
    return 5 * frames + 2 * FEATURES * (1 + FEATURES)


def summarize(sums: Tensor, clips: int) -> Mapping[str, float]:
    """Return the metrics of the ``sums`` (n,) that ``measure`` returns, of all ``clips``.

    The sharpness of a frame is the root mean square of the differences of neighbouring pixels, over
    that of the truth; 1 is right, and that of the worst frame counts. What is uncertain grows with
    time, and so does the blur of a prediction that averages over it.
    """
    features = FEATURES * (1 + FEATURES)
    of_frames, *moments = sums.cpu().split([len(sums) - 2 * features, features, features])
    ssim, psnr, edges, true_edges, count = of_frames.unflatten(0, (5, -1))
    ratios = (edges / true_edges).sqrt().nan_to_num(0.0, 0.0).tolist()
    sharpness = max(ratios, key=lambda ratio: abs(ratio - 1))
    return {
        "ssim": float(ssim.sum() / count.sum()),
        "sharpness_error": abs(sharpness - 1),
        "clip_distance": compute_distance(*(each.numpy() / clips for each in moments)),
        "sharpness": sharpness,
        "psnr": float(psnr.sum() / count.sum()),
        "psnr_first": float(psnr[0] / count[0]),
        "psnr_last": float(psnr[-1] / count[-1]),
    }


def compute_distance(one: np.ndarray, true: np.ndarray) -> float:
    """Return the Fréchet distance of predicted from true clips, from the moments of features.

    Both are mean and mean products, (FEATURES + FEATURES²,). Features are in standard deviations of
    the truth, and seen along its first COMPONENTS principal axes. The distance is that of two
    normal distributions (Heusel et al. 2017, arXiv:1706.08500, section 4).
    """
    (mean, spread), (true_mean, true_spread) = map(_split, (one, true))
    unit = np.sqrt(np.maximum(true_spread.diagonal(), LEAST_VARIANCE))
    values, axes = np.linalg.eigh(true_spread / np.outer(unit, unit))
    seen = [-1 - n for n in range(COMPONENTS) if values[-1 - n] > LEAST_SHARE * values[-1]]
    values, axes = values[seen], axes[:, seen] / unit[:, None]
    offset, own = axes.T @ (mean - true_mean), axes.T @ spread @ axes
    if not np.isfinite(own).all():
        return math.nan  # as the other metrics of a network that diverged
    roots = np.sqrt(values)
    shared = np.linalg.eigvalsh(own * np.outer(roots, roots)).clip(0)
    return float(offset @ offset + own.trace() + values.sum() - 2 * np.sqrt(shared).sum())


def _split(moments: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, products = moments[:FEATURES], moments[FEATURES:].reshape(FEATURES, FEATURES)
    return mean, products - np.outer(mean, mean)
