"""Simulated scenes: small pieces of sky with several overlapping objects each, in three bands.

Images
    Row 0 is the top of a picture and y runs downwards, as everywhere in object detection. The
    bands are i, r, g, in this order red, green and blue of a colour picture. A pixel of x sky
    noises, with the sky subtracted, is stored as the level of asinh(x / STRETCH_NOISE) in
    STRETCH_RANGE: 255 steps of a twentieth of the noise, and finer than the noise of bright pixels.
    The noise is that of sky and objects.

Truth
    A pixel belongs to the object that is the brightest there in all bands together, if that one
    exceeds the noise of all bands together (1 sigma). Pieces of less than SMALLEST_PIXELS pixels
    do not count; an object of which nothing counts is not in the truth. The box of an object is
    the smallest one round its pixels.

Stored arrays
    ``images``           uint8 (rows, y, x, 3)
    ``boxes``            float32 (rows, most, 4): left, top, right, bottom, in shares of the side
    ``labels``           uint8 (rows, most): 1 to 3 as in ``objects.CLASSES``; 0 where there is
                         no further object
    ``signal_to_noise``  float32 (rows, most): of the whole object, were it alone
    ``masks``            uint8 (rows, most, bytes): a bit per pixel (``numpy.packbits``)

    Rows [0, train) are for training, the next ones for evaluation.

What is in row i is a function of the seed and i only. Which objects there are is said in
``objects``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.ndimage

from cepheid.reference.data import dataset
from cepheid.reference.data.columns import Fixed
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.detection.average_precision import Mask, Truth
from cepheid.reference.data.galaxies import SkyParameters
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.scenes import objects
from cepheid.reference.data.scenes.objects import CLASSES
from cepheid.reference.data.store import Manifest, StoreError

BANDS = "irg"
SMALLEST_PIXELS = 12  # of a piece of an object
THRESHOLD_NOISE = 1.0
FEWEST_SCENE_PIXELS = 32
STRETCH_NOISE = 2.0  # what is fainter than so many sky noises is stored linearly
STRETCH_RANGE = (-2.0, 4.5)  # as levels 0 and 255
CHUNK_ROWS = 100
AREA_LIMITS = (100.0, 200.0)  # pixels of a mask; about a third of the objects in each range
_OBJECT_STREAM, _NOISE_STREAM = 0, 1


@dataclass(frozen=True)
class SceneParameters(dataset.Parameters):
    """The ``data`` section of a definition."""

    generator = "scenes"
    recorded = ("train_samples", "evaluation_samples", "seed", "fewest_objects", "most_objects")

    train_samples: int
    evaluation_samples: int
    seed: int = 20260101
    pixels: int = 64
    fewest_objects: int = 3
    most_objects: int = 8

    def __post_init__(self) -> None:
        self.check_samples()
        if self.pixels < FEWEST_SCENE_PIXELS:
            raise StoreError(
                f"data.pixels is {self.pixels}, expected {FEWEST_SCENE_PIXELS} or more"
            )
        if not 1 <= self.fewest_objects <= self.most_objects:
            raise StoreError(
                f"data.fewest_objects is {self.fewest_objects} and most_objects "
                f"{self.most_objects}, expected 1 or more and not less than that"
            )

    @cached_property
    def sky(self) -> SkyParameters:
        """The observation: bands, noise, pixels and PSF of ten years of LSST."""
        return SkyParameters(samples=1, bands=BANDS, pixels=self.pixels)

    def describe(self) -> dict[str, Any]:
        """Return how scenes are drawn and observed."""
        observation = self.sky.as_json
        unused = ("generator_version", "samples", "seed", "population", "largest_offset_pixels")
        return {
            "smallest_pixels": SMALLEST_PIXELS,
            "threshold_noise": THRESHOLD_NOISE,
            "stretch_noise": STRETCH_NOISE,
            "stretch_range": list(STRETCH_RANGE),
            "observation": {key: observation[key] for key in observation if key not in unused},
            "population": objects.describe_population(),
        }


@dataclass(frozen=True)
class Scenes:
    """A prepared dataset: arrays as the module's docstring says, with labels as int64."""

    train_samples: int
    evaluation_samples: int
    images: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    signal_to_noise: np.ndarray
    packed_masks: np.ndarray
    manifest: Manifest
    class_names: tuple[str, ...] = CLASSES

    def read_image(self, row: int) -> np.ndarray:
        """Return an image, uint8 (y, x, 3)."""
        return np.array(self.images[row])

    def compose_pictures(self, rows: np.ndarray, data: Mapping[str, Any]) -> list[np.ndarray]:
        """Return colour pictures of rows (n,) for people, uint8 (y, x, 3) each.

        ``data`` is that of the definition.
        """
        from cepheid.reference.data.sky import colour  # astropy is slow to import

        images = np.stack([self.read_image(row) for row in rows])
        signals = compute_sky_noises(images).transpose(0, 3, 1, 2)
        return list(colour.compose_colours(signals, parameters_of(data).sky))

    def read_boxes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes (n, most, 4) and labels (n, most) of scenes ``rows``, (n,)."""
        return self.boxes[rows], self.labels[rows]

    def read_sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return the heights and widths of scenes ``rows``, (n,), in pixels, (n, 2)."""
        return np.tile(self.images.shape[1:3], (len(rows), 1))

    def read_masks(self, rows: np.ndarray) -> np.ndarray:
        """Return the masks of scenes ``rows``, (n,), as bool (n, most, y, x)."""
        height, width = self.images.shape[1:3]
        bits = np.unpackbits(self.packed_masks[rows], axis=-1, count=height * width)
        return bits.reshape(*bits.shape[:2], height, width).astype(bool)

    def read_mask_crops(self, rows: np.ndarray, size: int) -> np.ndarray:
        """Return masks of scenes (n,) within their boxes, uint8 (n, most, size, size).

        Each value is the pixel at the centre of its part of the box.
        """
        masks = self.read_masks(rows).astype(np.uint8)
        limits = np.array(masks.shape[:1:-1])  # width, height
        low, high = np.split(self.boxes[rows].astype(np.float64) * np.tile(limits, 2), 2, axis=-1)
        parts = (np.arange(size) + 0.5) / size
        places = (low[..., None] + (high - low)[..., None] * parts).astype(np.int64)
        across, down = (places[:, :, axis] for axis in (0, 1))
        images, objects = np.indices(masks.shape[:2])[..., None, None]
        return masks[images, objects, down[..., None], across[:, :, None, :]]


# Drawing ------------------------------------------------------------------------------------------


def draw(parameters: SceneParameters, indices: range) -> dict[str, np.ndarray]:
    """Draw scenes ``indices``: the stored arrays, each (rows, …)."""
    rows = [_draw_scene(parameters, index) for index in indices]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _draw_scene(parameters: SceneParameters, index: int) -> dict[str, np.ndarray]:
    sky = parameters.sky
    random = _make_generator(parameters, index, _OBJECT_STREAM)
    found = objects.draw_objects(random, sky, parameters.fewest_objects, parameters.most_objects)
    signals = np.stack([objects.compute_signal(sky, each) for each in found])
    masks = find_visible_pixels(signals)
    counted = [k for k in range(len(found)) if masks[k].any()]
    most = parameters.most_objects
    boxes, labels = np.zeros((most, 4), np.float32), np.zeros(most, np.uint8)
    ratios, packed = np.zeros(most, np.float32), np.zeros((most, -(-masks[0].size // 8)), np.uint8)
    for place, k in enumerate(counted):
        boxes[place] = find_box(masks[k]) / parameters.pixels
        labels[place], ratios[place] = found[k].label, found[k].signal_to_noise
        packed[place] = np.packbits(masks[k])
    return {
        "images": _observe(
            sky, signals.sum(axis=0), _make_generator(parameters, index, _NOISE_STREAM)
        ),
        "boxes": boxes,
        "labels": labels,
        "signal_to_noise": ratios,
        "masks": packed,
    }


def find_visible_pixels(signals: np.ndarray) -> np.ndarray:
    """Return the pixels that belong to each object, bool (n, y, x).

    ``signals`` are (n, bands, y, x) in units of the noise of each band.
    """
    together = signals.sum(axis=1) / math.sqrt(signals.shape[1])  # its noise is 1 again
    brightest = together.argmax(axis=0) == np.arange(len(signals))[:, None, None]
    masks = brightest & (together > THRESHOLD_NOISE)
    return np.stack([_drop_small_pieces(mask) for mask in masks])


def find_box(mask: np.ndarray) -> np.ndarray:
    """Return left, top, right and bottom of the pixels of a mask, float64 (4,)."""
    across, down = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    return np.array([across[0], down[0], across[-1] + 1, down[-1] + 1], float)


def _drop_small_pieces(mask: np.ndarray) -> np.ndarray:
    pieces, _ = scipy.ndimage.label(mask)
    is_kept = np.bincount(pieces.ravel()) >= SMALLEST_PIXELS
    is_kept[0] = False
    return np.asarray(is_kept[pieces])


def _observe(sky: SkyParameters, signal: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Add the noise of sky and objects to (bands, y, x); return levels, uint8 (y, x, bands)."""
    electrons = np.sqrt(np.array(sky.sky_electrons))[:, None, None]  # of one sky noise
    deviation = np.sqrt(1 + np.maximum(signal, 0) / electrons)
    image = signal + deviation * random.standard_normal(signal.shape)
    low, high = STRETCH_RANGE
    levels = (np.arcsinh(image / STRETCH_NOISE) - low) * (255 / (high - low))
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8).transpose(1, 2, 0)


def compute_sky_noises(images: np.ndarray) -> np.ndarray:
    """Return pixels in units of the sky noise, float64, of levels of any shape."""
    low, high = STRETCH_RANGE
    return np.asarray(STRETCH_NOISE * np.sinh(low + images * ((high - low) / 255)))


def _make_generator(parameters: SceneParameters, index: int, stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([parameters.seed, index, stream]))


# The truth ----------------------------------------------------------------------------------------


def make_truth(scenes: Scenes, *, with_masks: bool = False) -> Truth:
    """Return the truth of the evaluation split, whose images are numbered from 0."""
    rows = np.arange(scenes.train_samples, scenes.train_samples + scenes.evaluation_samples)
    labels, boxes = scenes.labels[rows], scenes.boxes[rows].astype(np.float64)
    numbers, places = np.nonzero(labels)
    height, width = scenes.images.shape[1:3]
    packed = scenes.packed_masks[rows][numbers, places]
    return Truth(
        classes=len(CLASSES),
        heights=np.full(len(rows), height),
        widths=np.full(len(rows), width),
        image_numbers=numbers,
        labels=labels[numbers, places],
        boxes=boxes[numbers, places] * [width, height, width, height],
        areas=np.unpackbits(packed, axis=-1).sum(axis=-1, dtype=np.int64),
        is_crowd=np.zeros(len(numbers), bool),
        area_limits=AREA_LIMITS,
        masks=encode_masks(packed, height, width) if with_masks else None,
    )


def encode_masks(packed: np.ndarray, height: int, width: int) -> list[Mask]:
    """Return packed masks, uint8 (n, bytes), in COCO's run-length code."""
    from faster_coco_eval import mask  # not needed where only boxes are compared

    bits = np.unpackbits(packed, axis=-1, count=height * width).reshape(-1, height, width)
    return mask.encode(np.asfortranarray(bits.transpose(1, 2, 0)))


# The dataset --------------------------------------------------------------------------------------


def _plan(parameters: SceneParameters, work: Work) -> Contents:
    side, most = parameters.pixels, parameters.most_objects
    columns = {
        "images": Fixed(np.dtype(np.uint8), (side, side, len(BANDS))),
        "boxes": Fixed(np.dtype(np.float32), (most, 4)),
        "labels": Fixed(np.dtype(np.uint8), (most,)),
        "signal_to_noise": Fixed(np.dtype(np.float32), (most,)),
        "masks": Fixed(np.dtype(np.uint8), (most, -(-side * side // 8))),
    }
    draw_rows = partial(draw, parameters)
    return Contents(columns, draw_rows, packages=("GalSim", "scipy"), chunk_rows=CHUNK_ROWS)


def _open(opened: Opened) -> Scenes:
    arrays = opened.arrays
    return Scenes(
        train_samples=opened.manifest.parameters["train_samples"],
        evaluation_samples=opened.manifest.parameters["evaluation_samples"],
        images=arrays["images"],
        boxes=np.array(arrays["boxes"]),
        labels=np.array(arrays["labels"], np.int64),
        signal_to_noise=np.array(arrays["signal_to_noise"]),
        packed_masks=arrays["masks"],
        manifest=opened.manifest,
    )


DATASET = dataset.Dataset(SceneParameters, _plan, _open)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
