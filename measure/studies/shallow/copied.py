"""Baselines that copy: altered training images for new ones."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

from cepheid.benchmarks.galaxy_generation import quality as of_images
from cepheid.measure.studies.shallow.trial import Metrics, Trial
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.galaxies.stamps import crop_middle

FARTHEST, SPREAD, SHARE = 2, 0.15, 0.1  # pixels, of ln flux, of the other image in a blend
ZOOM, JITTER, MOVED = 0.15, 0.03, 0.7  # spreads of ln size and of ln flux in each band; pixels
Alter = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def shift(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return images (n, bands, y, x), each rolled by up to two pixels, but by one at least."""
    moves = random.integers(-FARTHEST, FARTHEST + 1, (len(images), 2))
    moves[(moves == 0).all(1)] = 1, 0
    rolled = [np.roll(one, by, (1, 2)) for one, by in zip(images, moves.tolist(), strict=True)]
    return np.stack(rolled)


def rescale(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return images (n, bands, y, x) with other fluxes, rolled by up to two pixels."""
    factors = np.exp(random.normal(0, SPREAD, (len(images), 1, 1, 1))).astype(np.float32)
    return shift(images * factors, random)


def blend(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return images (n, bands, y, x), each with a tenth of another one."""
    return (1 - SHARE) * images + SHARE * images[random.permutation(len(images))]


def warp(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return images (n, bands, y, x), moved, turned by any angle and of other sizes and colours."""
    count, bands, pixels, _ = images.shape
    angle, factor = random.uniform(0, 2 * np.pi, count), np.exp(ZOOM * random.normal(size=count))
    cosine, sine = np.cos(angle) / factor, np.sin(angle) / factor
    moved = random.uniform(-MOVED, MOVED, (2, count)) * 2 / pixels
    back = np.array([[cosine, -sine, moved[0]], [sine, cosine, moved[1]]], np.float32)
    grid = nn.functional.affine_grid(
        torch.from_numpy(back).permute(2, 0, 1), list(images.shape), align_corners=False
    )
    warped = nn.functional.grid_sample(
        torch.from_numpy(images), grid, mode="bicubic", align_corners=False
    )
    colours = np.exp(JITTER * random.normal(size=(count, bands, 1, 1)))
    made: np.ndarray = warped.numpy() * (colours / factor[:, None, None, None] ** 2)
    return made.astype(np.float32)


def alter(change: Alter) -> Callable[[Trial], Iterator[Metrics]]:
    """Return a baseline that shows training images again, changed."""

    def run(trial: Trial) -> Iterator[Metrics]:
        pixels, count = trial.model["pixels"], trial.definition.evaluation_samples
        images = crop_middle(trial.data.noise_free, pixels)
        random = make_generator(trial.seed, "altered images")
        rows = np.sort(random.permutation(trial.definition.train_samples)[:count])
        known = np.asarray(images[trial.train], np.float32)
        made = of_images.measure(
            change(known[rows], random), trial.model, trial.definition.data
        )  # fmt: skip
        held_out = np.asarray(images[trial.evaluation], np.float32)
        yield of_images.compute_metrics(
            made, held_out, known, trial.model, trial.definition.data
        )  # fmt: skip

    return run
