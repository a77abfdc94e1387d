"""Shallow baselines for galaxies: moments of a stamp and a small network on them.

Moments are ∫ I w (r/σ)^(m + 2k) cos mθ and sin mθ in Gaussian windows of several sizes σ and stacks
of bands, over the flux in the window. A turn or flip of a stamp changes them by signs alone, so all
eight orientations cost nothing. The network has two hidden layers and never sees a pixel.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.galaxy_shape.model import negative_log_likelihood
from cepheid.measure.studies.shallow.trial import Metrics, Trial
from cepheid.reference.galaxies.shapes import name_metrics, sum_metrics

WINDOWS = (2.0, 3.0, 4.5, 7.0, 10.0)  # pixels
ORDERS, POWERS = (0, 1, 2, 3, 4), (0, 1)
WIDTH, BATCH, RATE, EPOCHS = 160, 64, 3e-3, (8, 20)
CLIP = 10.0  # of a moment over the flux, where there is hardly any
SMALLEST = 1e-3
TOGETHER = 500


class Moments(NamedTuple):
    """Features by their symmetry: cos mθ and sin mθ, (n, orders, features) both."""

    cos: Tensor
    sin: Tensor


def make_windows(pixels: int) -> tuple[Tensor, Tensor]:
    """Return the weights of the moments, (orders, windows × powers, y, x), cosine and sine."""
    side = torch.arange(pixels, dtype=torch.float32) - (pixels - 1) / 2
    y, x = torch.meshgrid(side, side, indexing="ij")
    radius, angle = (x.square() + y.square()).sqrt(), torch.atan2(y, x)
    weights = [
        torch.stack(
            [
                torch.exp(-(radius**2) / (2 * s**2)) * (radius / s) ** (m + 2 * k)
                for s in WINDOWS
                for k in POWERS
            ]
        )
        for m in ORDERS
    ]
    radial = torch.stack(weights)
    orders = torch.tensor(ORDERS).view(-1, 1, 1, 1)
    return radial * torch.cos(orders * angle), radial * torch.sin(orders * angle)


def measure_moments(stamps: np.ndarray) -> Moments:
    """Return the moments of stamps (n, bands, y, x), in each band and their sum."""
    windows = make_windows(stamps.shape[-1])
    parts = []
    for first in range(0, len(stamps), TOGETHER):
        images = torch.from_numpy(np.asarray(stamps[first : first + TOGETHER], np.float32))
        images = torch.cat([images, images.sum(1, keepdim=True)], 1)
        flat = images.flatten(2)
        values = [torch.einsum("nbp,owp->nobw", flat, window.flatten(2)) for window in windows]
        flux = values[0][:, :1, :, :: len(POWERS)].repeat_interleave(len(POWERS), 3)
        floor = 0.1 * flux.abs().mean((0, 3), keepdim=True) + 1e-6
        parts.append([(each / flux.clamp(min=floor)).clamp(-CLIP, CLIP) for each in values])
    cos, sin = (torch.cat(each).flatten(2) for each in zip(*parts, strict=True))
    return Moments(cos, sin)


def reorient(moments: Moments, flips: Tensor) -> Moments:
    """Return the moments of stamps in orientations (n,): bit 0 flips x, 1 flips y, 2 transposes."""
    orders = torch.tensor(ORDERS)
    odd = (-1.0) ** orders
    cos, sin = moments
    x, y, t = (((flips >> bit) & 1).bool().view(-1, 1, 1) for bit in range(3))
    column = odd.view(1, -1, 1)
    cos, sin = torch.where(x, column * cos, cos), torch.where(x, -column * sin, sin)
    sin = torch.where(y, -sin, sin)
    c, s = (f(orders * math.pi / 2).view(1, -1, 1) for f in (torch.cos, torch.sin))
    return Moments(torch.where(t, c * cos + s * sin, cos), torch.where(t, s * cos - c * sin, sin))


def reorient_labels(labels: Tensor, flips: Tensor) -> Tensor:
    """Return (e1, e2) of stamps in these orientations, (n, 2)."""
    x, y, t = (1.0 - 2 * ((flips >> bit) & 1) for bit in range(3))
    return torch.stack([labels[:, 0] * t, labels[:, 1] * x * y], 1)


def run_moments(trial: Trial) -> Iterator[Metrics]:
    """Train networks on moments, and take the mean over the eight orientations."""
    data = trial.data
    moments = measure_moments(data.stamps[: trial.evaluation.stop])
    targets = torch.from_numpy(
        np.stack([np.asarray(data.labels[name], np.float32) for name in ("e1", "e2")], 1)
    )
    for epochs in EPOCHS:
        torch.manual_seed(trial.seed)
        network = _train(_take(moments, trial.train), targets[trial.train], epochs)
        yield _judge(network, _take(moments, trial.evaluation), targets[trial.evaluation])


def _take(moments: Moments, rows: slice) -> Moments:
    return Moments(*(part[rows] for part in moments))


def _flatten(moments: Moments) -> Tensor:
    return torch.cat([part.flatten(1) for part in moments], 1)


def predict(network: nn.Module, moments: Moments) -> tuple[Tensor, Tensor]:
    """Return means (n, 2) and lower triangular scale matrices (n, 2, 2)."""
    out = network(_flatten(moments))
    diagonal = nn.functional.softplus(out[:, 2:4]) + SMALLEST
    zero = torch.zeros_like(out[:, 0])
    rows = (diagonal[:, 0], zero, out[:, 4], diagonal[:, 1])
    return out[:, :2], torch.stack(rows, 1).view(-1, 2, 2)


def _train(moments: Moments, targets: Tensor, epochs: int) -> nn.Module:
    features = _flatten(moments)
    norm = nn.BatchNorm1d(features.shape[1], affine=False)
    network = nn.Sequential(
        norm, nn.Linear(features.shape[1], WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(),
        nn.Linear(WIDTH, 5),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=1e-3)
    steps = max(1, epochs * len(features) // BATCH)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps + 1)
    for _ in range(steps):
        rows = torch.randint(len(features), (BATCH,))
        flips = torch.randint(8, (BATCH,))
        few = reorient(Moments(moments.cos[rows], moments.sin[rows]), flips)
        labels = reorient_labels(targets[rows], flips)
        loss = negative_log_likelihood(*predict(network, few), labels).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
        cycle.step()
    return network.eval()


@torch.no_grad()
def _judge(network: nn.Module, moments: Moments, labels: Tensor) -> Mapping[str, float]:
    """Return the metrics of the mean over orientations; each is turned back, (e1, e2) by signs."""
    means, scales = [], []
    for code in range(8):
        flips = torch.full((len(labels),), code)
        mean, scale = predict(network, reorient(moments, flips))
        means.append(reorient_labels(mean, flips))
        signs = reorient_labels(torch.ones_like(mean), flips)
        scales.append(signs[:, :, None] * scale @ torch.diag_embed(signs))
    mean, scale = torch.stack(means).mean(0), torch.stack(scales).mean(0)
    sums = sum_metrics(mean.numpy(), scale.numpy(), labels.numpy())
    return name_metrics(sums.tolist(), labels.shape[1])
