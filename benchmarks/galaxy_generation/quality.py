"""Whether generated images are galaxies, and new ones; and what their speed means.

generated_distance
    As in galaxy_vae: the mean over magnitude, size, e1, e2 and five colours of the Wasserstein-1
    distance from the real galaxies that were held out, in standard deviations of those.

distinct_share, new_share
    Two images are as far apart as their scaled fluxes (what the networks see, so that faint
    galaxies count) in cells of 4×4 pixels, the root of the sum of squares over cells and bands. An
    image is *distinct* where the nearest other generated image is not nearer than real galaxies are
    to each other, and *new* where the nearest training image, in any of its eight orientations, is
    not nearer than those of real galaxies that were held out. Nearer means: than 99% of them are.
    As many images of each kind are compared, so that real galaxies have 0.99 in both; a
    repeated image has 0 in the one, a training image that is shown again 0 in the other.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.galaxy_vae import properties
from benchmarks.galaxy_vae.model import FluxScaling, measure_properties
from reference.run.generate import Times
from reference.run.report import Table, Value
from rules.generation import compute_metrics as compute_speed_metrics
from rules.generation import percentile

CELL_PIXELS = 4
NEARER_THAN_PERCENT = 1.0
COSMODC2_GALAXIES = 2.26e9
PAPER_DAYS, PAPER_IMAGES_PER_SECOND = 17.7, 1477
SECONDS_PER_DAY = 86_400


def compute_metrics(
    images: Tensor,
    held_out: Tensor,
    training: Tensor,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
) -> dict[str, float]:
    """Return the quality metrics and every single distance.

    Images are (n, bands, y, x) in units of the sky noise. The first generated ones are compared
    with the held-out ones, of which there may be any number.
    """

    def measure(some: Tensor) -> np.ndarray:
        return measure_properties(some, data["bands"], data["pixel_scale_arcsec"])

    distances = properties.compute_distances(measure(images), measure(held_out), data["bands"])
    scaling = FluxScaling(model["mean_maxima"])
    compared = min(len(images), len(held_out))
    generated, real = (_average_cells(some[:compared], scaling) for some in (images, held_out))
    known = _average_cells(training, scaling)
    return {
        "generated_distance": properties.average_distances(distances),
        "distinct_share": _count_far(_find_nearest_other(generated), _find_nearest_other(real)),
        "new_share": _count_far(
            _find_nearest_known(generated, known), _find_nearest_known(real, known)
        ),
        **{f"distance_{name}": value for name, value in distances.items()},
    }


def _average_cells(images: Tensor, scaling: FluxScaling) -> Tensor:
    """Return mean scaled fluxes of cells times the root of their pixels, (n, bands, y, x)."""
    parts = [F.avg_pool2d(scaling(part), CELL_PIXELS) for part in images.split(500)]
    return torch.cat(parts).float() * CELL_PIXELS


def _find_nearest_other(cells: Tensor) -> Tensor:
    """Return the distance of each image from the nearest other one, (n,)."""
    squares = _compute_squared_distances(cells, cells)
    squares.fill_diagonal_(math.inf)
    return squares.amin(1).sqrt()


def _find_nearest_known(cells: Tensor, known: Tensor) -> Tensor:
    """Return the distance of each image from the nearest of ``known`` in any orientation, (n,)."""
    nearest = torch.full((len(cells),), math.inf)
    for turned in _list_orientations(
        cells
    ):  # rotating the others instead is equivalent, but they are more
        nearest = torch.minimum(nearest, _compute_squared_distances(turned, known).amin(1))
    return nearest.sqrt()


def _list_orientations(cells: Tensor) -> list[Tensor]:
    """Return ``cells`` in the eight orientations of the square."""
    turns = [torch.rot90(cells, turn, (2, 3)) for turn in range(4)]
    return turns + [turned.transpose(2, 3) for turned in turns]


def _compute_squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return all squared distances, (n, m), by matrix products; at least 0."""
    a, b = first.flatten(1), second.flatten(1)
    norms = a.square().sum(1)[:, None] + b.square().sum(1)
    return torch.addmm(norms, a, b.T, alpha=-2).clamp(min=0)


def _count_far(distances: Tensor, usual: Tensor) -> float:
    """Return the share of distances not below the 1st percentile of ``usual``; NaN is below."""
    near = torch.quantile(usual, NEARER_THAN_PERCENT / 100)
    return float((distances >= near).double().mean())


def make_speed_table(times: Sequence[Times], scale: str) -> Table:
    """Return milliseconds and images per second for each batch size, and CosmoDC2's time."""
    rows: list[Mapping[str, Value]] = [
        {
            "images": taken.images,
            "repetitions": len(taken.seconds),
            "sampling_ms": 1000 * statistics.median(taken.sampling_seconds),
            "decoding_ms": 1000 * statistics.median(taken.decoding_seconds),
            "p50_ms": 1000 * percentile(taken.seconds, 50),
            "p99_ms": 1000 * percentile(taken.seconds, 99),
            "images_per_second": taken.images / statistics.median(taken.seconds),
        }
        for taken in times
    ]
    score = compute_speed_metrics(
        [taken.images for taken in times], [taken.seconds for taken in times]
    )
    rate = score["images_per_second"]
    days = COSMODC2_GALAXIES / rate / SECONDS_PER_DAY
    note = (
        f"Latency of {times[0].images} image: p50 {score['latency_ms_p50']:.2f} ms, p99 "
        f"{score['latency_ms_p99']:.2f} ms. The {COSMODC2_GALAXIES / 1e9:.2f} billion galaxies of "
        f"CosmoDC2 at {rate:,.0f} images/s take {days:,.1f} days; the paper says "
        f"{PAPER_DAYS} days, of a V100 at {PAPER_IMAGES_PER_SECOND:,} images/s (as reported: timed "
        "once, without waiting for the device)."
    )
    if scale != "full":
        note += f" Not comparable: at {scale} scale the decoder is smaller than the paper's."
    return Table("Generation, medians over all repetitions", tuple(rows), note)
