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

copied_excess
    By how much more generated images than held-out galaxies are near to a training image in what
    shifts, turns, other fluxes, colours or sizes do not change (``memorisation``), at least: the
    lower end of an interval. Above 0 they are training images in disguise.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cepheid.benchmarks.galaxy_generation import memorisation
from cepheid.benchmarks.galaxy_vae.framework_free import scale_fluxes
from cepheid.reference.galaxies import properties
from cepheid.reference.run.generation import Times
from cepheid.reference.run.report import Table, Value
from cepheid.rules.metrics import compute_generation_scores, compute_largest_excess, percentile

CELL_PIXELS = 4
NEARER_THAN_PERCENT = 1.0
IMAGES_TOGETHER = 500  # that are measured at once
COSMODC2_GALAXIES = 2.26e9
PAPER_DAYS, PAPER_IMAGES_PER_SECOND = 17.7, 1477
SECONDS_PER_DAY = 86_400


class Measured(NamedTuple):
    """What the metrics see of images: properties (n, p), cells (n, bands, y, x), descriptions."""

    properties: np.ndarray
    cells: np.ndarray
    described: np.ndarray  # (n, numbers), by ``memorisation``


def measure(images: np.ndarray, model: Mapping[str, Any], data: Mapping[str, Any]) -> Measured:
    """Measure images, (n, bands, y, x), in units of the sky noise."""
    bands, pixel_scale_arcsec = data["bands"], data["pixel_scale_arcsec"]
    return join(
        [
            Measured(
                properties.measure(part, bands, pixel_scale_arcsec),
                average_cells(part, model["mean_maxima"]),
                memorisation.describe(part, bands),
            )
            for part in split(images)
        ]
    )


def join(parts: Sequence[Measured]) -> Measured:
    """Return all parts as one."""
    return Measured(*map(np.concatenate, zip(*parts, strict=True)))


def compute_metrics(
    generated: Measured,
    held_out: np.ndarray,
    training: np.ndarray,
    model: Mapping[str, Any],
    data: Mapping[str, Any],
) -> dict[str, float]:
    """Return the quality metrics and every single distance.

    ``held_out`` and ``training`` are images, (n, bands, y, x), in units of the sky noise. The first
    generated ones are compared with the held-out ones, of which there may be any number.
    """
    real, known = (measure(images, model, data) for images in (held_out, training))
    distances = properties.compute_distances(generated.properties, real.properties, data["bands"])
    compared = min(len(generated.cells), len(real.cells))
    new, true = generated.cells[:compared], real.cells[:compared]
    near = memorisation.measure_near_shares(
        generated.described[:compared], real.described, known.described, data["bands"]
    )
    return {
        "generated_distance": properties.average_distances(distances),
        "distinct_share": _count_far(_find_nearest_other(new), _find_nearest_other(true)),
        "new_share": _count_far(
            _find_nearest_known(new, known.cells), _find_nearest_known(true, known.cells)
        ),
        "copied_excess": compute_largest_excess(near, memorisation.USUAL, compared),
        **{f"near_{name}_share": share for name, share in near.items()},
        **{f"distance_{name}": value for name, value in distances.items()},
    }


def split(images: np.ndarray) -> list[np.ndarray]:
    """Return parts of images, (n, bands, y, x), that need little memory; at least one."""
    firsts = range(0, max(1, len(images)), IMAGES_TOGETHER)
    return [images[first : first + IMAGES_TOGETHER] for first in firsts]


def average_cells(images: np.ndarray, mean_maxima: Sequence[float]) -> np.ndarray:
    """Return mean scaled fluxes of cells times the root of their pixels, (n, bands, y, x)."""
    scaled = scale_fluxes(images, mean_maxima)
    count, bands, rows, columns = scaled.shape
    side = CELL_PIXELS
    cells = scaled.reshape(count, bands, rows // side, side, columns // side, side)
    return cells.mean((3, 5)) * np.float32(side)


def _find_nearest_other(cells: np.ndarray) -> np.ndarray:
    """Return the distance of each image from the nearest other one, (n,)."""
    squares = _compute_squared_distances(cells, cells)
    np.fill_diagonal(squares, math.inf)
    return np.sqrt(squares.min(1))


def _find_nearest_known(cells: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the distance of each image from the nearest of ``known`` in any orientation, (n,)."""
    nearest = np.full(len(cells), math.inf, np.float32)
    turns = [np.rot90(cells, turn, (2, 3)) for turn in range(4)]
    # Rotating the others instead is equivalent, but they are more.
    for turned in [*turns, *(turn.swapaxes(2, 3) for turn in turns)]:
        nearest = np.minimum(nearest, _compute_squared_distances(turned, known).min(1))
    return np.sqrt(nearest)


def _compute_squared_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return all squared distances, (n, m), by matrix products; at least 0."""
    a, b = (cells.reshape(len(cells), -1) for cells in (first, second))
    squares: np.ndarray = a @ b.T
    squares *= -2
    squares += np.square(a).sum(1)[:, None] + np.square(b).sum(1)
    np.maximum(squares, 0, out=squares)
    return squares


def _count_far(distances: np.ndarray, usual: np.ndarray) -> float:
    """Return the share of distances not below the 1st percentile of ``usual``; NaN is below."""
    near = np.quantile(usual, NEARER_THAN_PERCENT / 100)
    return float((distances >= near).mean())


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
    score = compute_generation_scores(
        [taken.images for taken in times], [taken.seconds for taken in times]
    )
    rate = score["images_per_second"]
    days = COSMODC2_GALAXIES / rate / SECONDS_PER_DAY
    note = (
        f"Latency of {times[0].images} image: p50 {score['latency_ms_p50']:.2f} ms, p90 "
        f"{score['latency_ms_p90']:.2f} ms. The {COSMODC2_GALAXIES / 1e9:.2f} billion galaxies of "
        f"CosmoDC2 at {rate:,.0f} images/s take {days:,.1f} days; the paper says "
        f"{PAPER_DAYS} days, of a V100 at {PAPER_IMAGES_PER_SECOND:,} images/s (as reported: timed "
        "once, without waiting for the device)."
    )
    if scale != "full":
        note += f" Not comparable: at {scale} scale the decoder is smaller than the paper's."
    return Table("Generation, medians over all repetitions", tuple(rows), note)
