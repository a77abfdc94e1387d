"""Shallow baselines for labelled pictures: patches, two layers of them, HOG, nearest neighbours.

Patches are cut from training pictures at random and never trained. Only a ridge regression on what
they respond learns. Sources: Coates, Lee, Ng (2011), single-layer networks; Dalal, Triggs (2005).
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cepheid.measure.studies.shallow.trial import Metrics, Trial
from cepheid.reference.data.image_files.crops import Cropping, make_evaluation_views, read_views
from cepheid.reference.data.radiographs.auroc import measure_quality

PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # times the mean square of a feature and the number of pictures
PATCH_SIZES, PATCHES = (9, 7, 11), 60
FIRST_PATCHES, SECOND_PATCHES, LAYER_SIZE = 24, 150, 5
CANDIDATES = 4  # for each patch, of which the one with the most contrast is taken
DIRECTIONS = 9
NEIGHBOURS = (1, 5, 15)
TOGETHER = 250


class Pictures(NamedTuple):
    """Grey pictures (n, 1, y, x) and their targets (n, classes), 1 or −1, to learn and to judge."""

    train: Tensor
    targets: Tensor
    judged: Tensor
    truth: np.ndarray


def read(trial: Trial) -> Pictures:
    """Read the middle of each picture, as evaluation does, along the main axis of the colours."""
    pixels = int(trial.model["pixels"])
    cropping = Cropping(pixels, int(trial.model.get("evaluation_resize_pixels", pixels)))
    rows = np.arange(trial.evaluation.stop)
    views = make_evaluation_views(trial.data, cropping, rows)
    seen = torch.from_numpy(read_views(trial.data, views, pixels)).float()
    colours = seen.flatten(0, 2)
    colours = colours - colours.mean(0)
    axis = torch.linalg.eigh(colours.T @ colours)[1][:, -1]
    grey = (colours @ axis / colours.std()).view(len(seen), 1, pixels, pixels)
    labels = trial.data.labels
    return Pictures(
        grey[trial.train],
        _spread(labels[trial.train]),
        grey[trial.evaluation],
        labels[trial.evaluation],
    )


def _spread(labels: np.ndarray) -> Tensor:
    """Return labels (n,) or findings (n, k) as targets, 1 or −1."""
    if labels.ndim == 1:
        labels = np.eye(int(labels.max()) + 1, dtype=np.float32)[labels]
    return 2 * torch.from_numpy(np.asarray(labels, np.float32)) - 1


def judge(scores: Tensor, truth: np.ndarray) -> Metrics:
    """Return the accuracy of classes (n,), or the areas under the curves of findings (n, k)."""
    if truth.ndim == 1:
        return {"accuracy": float((scores.argmax(1).numpy() == truth).mean())}
    return measure_quality(scores.numpy(), truth)


# Ridge regression -------------------------------------------------------------------------------


def fit_ridge(pictures: Pictures, features: Tensor, judged: Tensor) -> Iterator[Metrics]:
    """Yield the metrics of a ridge regression for each penalty; features are (n, d)."""
    mean, spread = features.mean(0), features.std(0) + 1e-6
    known, new = ((part - mean) / spread for part in (features, judged))
    known, new = (functional.pad(part, (0, 1), value=1.0) for part in (known, new))
    squares, products = (known.T @ known).double(), (known.T @ pictures.targets).double()
    for penalty in PENALTIES:
        ridge = squares + penalty * len(known) * torch.eye(len(squares), dtype=torch.float64)
        weights = torch.linalg.solve(ridge, products).float()
        yield judge(new @ weights, pictures.truth)


# Patches ----------------------------------------------------------------------------------------


def cut_patches(maps: Tensor, count: int, size: int, random: np.random.Generator) -> Tensor:
    """Cut patches of mean 0 and norm 1 from maps, (count, channels, size, size), none flat."""
    *_, height, width = maps.shape
    rows, tops, lefts = (
        random.integers(0, high, CANDIDATES * count)
        for high in (len(maps), height - size + 1, width - size + 1)
    )
    places = zip(rows, tops, lefts, strict=True)
    found = torch.stack([maps[r, :, y : y + size, x : x + size] for r, y, x in places])
    found = found - found.mean((1, 2, 3), keepdim=True)
    norms = found.flatten(1).norm(dim=1)
    chosen = norms.view(count, CANDIDATES).argmax(1) + CANDIDATES * torch.arange(count)
    return found[chosen] / (norms[chosen].view(-1, 1, 1, 1) + 1e-6)


def correlate(maps: Tensor, patches: Tensor) -> Tensor:
    """Return the normalised cross-correlation of maps with patches, (n, patches, y, x)."""
    size = patches.shape[-1]
    mean = functional.avg_pool2d(maps, size, 1).mean(1, keepdim=True)
    square = functional.avg_pool2d(maps.square(), size, 1).mean(1, keepdim=True)
    cells = maps.shape[1] * size**2
    floor = 0.01 * maps.var()
    norms = (cells * ((square - mean.square()).clamp(min=0) + floor)).sqrt()
    return functional.conv2d(maps, patches) / norms


def pool(maps: Tensor) -> Tensor:
    """Return maximum, minimum, mean square and the quadrants' maxima of maps, (n, features)."""
    corners = functional.adaptive_max_pool2d(maps, 2).flatten(1)
    return torch.cat([maps.amax((2, 3)), maps.amin((2, 3)), maps.square().mean((2, 3)), corners], 1)


def run_patches(trial: Trial) -> Iterator[Metrics]:
    """Learn from random patches of one size, then of several together."""
    pictures, random = read(trial), np.random.default_rng(trial.seed)
    parts: list[tuple[Tensor, Tensor]] = []
    for size in PATCH_SIZES:
        patches = cut_patches(pictures.train, PATCHES, size, random)
        respond = partial(correlate, patches=patches)
        parts.append((_respond(pictures.train, respond), _respond(pictures.judged, respond)))
        known, new = (torch.cat(each, 1) for each in zip(*parts, strict=True))
        yield from fit_ridge(pictures, known, new)


def run_two_layers(trial: Trial) -> Iterator[Metrics]:
    """Learn from random patches of what random patches respond."""
    pictures, random = read(trial), np.random.default_rng(trial.seed)
    first = cut_patches(pictures.train, FIRST_PATCHES, LAYER_SIZE, random)

    def rectify(few: Tensor) -> Tensor:
        both = correlate(few, first)
        both = torch.cat([both, -both], 1).clamp(min=0.25) - 0.25
        return functional.max_pool2d(both, 3, 2)

    second = cut_patches(rectify(pictures.train[:TOGETHER]), SECOND_PATCHES, LAYER_SIZE, random)
    known, new = (
        _respond(part, lambda few: correlate(rectify(few), second))
        for part in (pictures.train, pictures.judged)
    )
    yield from fit_ridge(pictures, known, new)


def _respond(pictures: Tensor, respond: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([pool(respond(few)) for few in pictures.split(TOGETHER)])


# Histograms of gradients, and neighbours --------------------------------------------------------


def describe_gradients(pictures: Tensor, cell: int) -> Tensor:
    """Return histograms of gradient directions in cells, normalised in blocks, (n, features)."""
    down = functional.pad(pictures[:, :, 2:] - pictures[:, :, :-2], (0, 0, 1, 1))
    across = functional.pad(pictures[:, :, :, 2:] - pictures[:, :, :, :-2], (1, 1))
    angle = torch.atan2(down, across) % math.pi
    which = (angle * (DIRECTIONS / math.pi)).long().clamp(max=DIRECTIONS - 1)
    strength = (down.square() + across.square()).sqrt()
    shape = (len(pictures), DIRECTIONS, *pictures.shape[2:])
    voted = pictures.new_zeros(shape).scatter_(1, which, strength)
    cells = functional.avg_pool2d(voted, cell)
    blocks = torch.stack(
        [
            cells[:, :, dy : cells.shape[2] - 1 + dy, dx : cells.shape[3] - 1 + dx]
            for dy in (0, 1)
            for dx in (0, 1)
        ],
        1,
    ).flatten(1, 2)
    normed: Tensor = blocks / (blocks.norm(dim=1, keepdim=True) + 1e-3)
    return normed.flatten(1)


def run_gradients(trial: Trial) -> Iterator[Metrics]:
    """Learn from histograms of oriented gradients by a ridge regression."""
    pictures = read(trial)
    for cell in (8, 5):
        parts = (describe_gradients(part, cell) for part in (pictures.train, pictures.judged))
        yield from fit_ridge(pictures, *parts)


def run_neighbours(trial: Trial) -> Iterator[Metrics]:
    """Take the labels of the most similar training pictures, of pixels or absolute pixels."""
    pictures = read(trial)
    for change in (torch.clone, torch.abs):
        known, new = (
            functional.normalize(_centre(change(part).flatten(1)))
            for part in (pictures.train, pictures.judged)
        )
        nearest = (new @ known.T).topk(max(NEIGHBOURS), 1).indices
        for count in NEIGHBOURS:
            yield judge(pictures.targets[nearest[:, :count]].mean(1), pictures.truth)


def _centre(values: Tensor) -> Tensor:
    return values - values.mean(1, keepdim=True)
