"""COCO 2017 (Lin et al. 2014, arXiv:1405.0312): photographs with boxes round their objects.

Source
    The folder layout in which COCO is distributed, see ``annotations``: the folder ``COCO2017``
    under the data root, put or linked there by hand.

Stored arrays
    ``images``   ragged: the JPEG files as they are, one after the other
    ``names``    ragged: their names, e.g. ``train2017/000000000009.jpg``, UTF-8
    ``facts``    structured (rows,): COCO's id, height and width in pixels, kind
    ``objects``  ragged: the objects of each image, records of ``annotations.OBJECT``
    ``masks``    ragged: their masks in COCO's run-length code, one after the other
    ``mask_ends``  ragged: where each mask ends among those of its image, int32

    The last two are there only with ``data.masks``. Rows [0, train) are for training, the next
    ones for evaluation; labels count the categories from 1 in the order of the annotations.
    ``image_files.packing`` says what becomes of files that are damaged, grey or no JPEG.

Training on boxes uses crowds like all other boxes, and training on masks leaves them out, as the
references of MLPerf 0.6 do. Boxes without area, of which there are a few, are left out: the
logarithm of their size has no value to learn. The truth of the evaluation has everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.coco import annotations, masks
from cepheid.reference.data.coco.annotations import OBJECT, Listing
from cepheid.reference.data.columns import Known, Ragged
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.detection.average_precision import Mask, Truth
from cepheid.reference.data.image_files import packing
from cepheid.reference.data.image_files.packing import PackedImages, Packing
from cepheid.reference.data.preparation import Contents

REAL = "COCO2017"
MASK_END = np.dtype("<i4")


@dataclass(frozen=True)
class CocoParameters(dataset.Parameters):
    """The ``data`` section of a definition."""

    generator = "coco"
    recorded = ("source", "train_samples", "evaluation_samples")
    sources = (REAL,)
    distributed = (REAL,)

    train_samples: int
    evaluation_samples: int
    source: str = REAL
    masks: bool = False
    is_subset: bool = False

    def __post_init__(self) -> None:
        self.check_source()
        self.check_samples()

    def describe(self) -> dict[str, Any]:
        """Return whether there are masks; datasets of boxes keep their names."""
        return {"masks": True} if self.masks else {}


@dataclass(frozen=True)
class Photographs(PackedImages):
    """A prepared dataset.

    ``class_names`` are those of labels 1, 2 and so on. ``image_ids`` (rows,) are COCO's.
    ``objects`` are those of all images in turn, of ``annotations.OBJECT``; those of row i end at
    ``object_ends[i]``. ``masks`` are the bytes of their masks and where each ends, if they are
    prepared.
    """

    class_names: tuple[str, ...]
    image_ids: np.ndarray
    objects: np.ndarray
    object_ends: np.ndarray
    masks: tuple[np.ndarray, np.ndarray] | None = None

    def read_image(self, row: int) -> np.ndarray:
        """Return an image, uint8 (y, x, 3)."""
        return self.files.decode(row)

    def compose_pictures(self, rows: np.ndarray, data: Mapping[str, Any]) -> list[np.ndarray]:
        """Return images of rows (n,) for people, uint8 (y, x, 3) each: as they are."""
        return [self.read_image(row) for row in rows]

    def read_boxes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes with area in rows (n,): float32 (n, most, 4), and labels, int64 (n, most).

        ``most`` is the largest number of objects in a training image. Boxes are left, top, right,
        bottom in shares of the sides; where there is none they and the label are 0.
        """
        stops = self.object_ends[rows]
        starts = stops - self._counts[rows]
        places = starts[:, None] + np.arange(self._most)
        found = self.objects[np.minimum(places, len(self.objects) - 1)]
        is_box = (places < stops[:, None]) & np.all(found["box"][..., 2:] > 0, axis=-1)
        if self.masks:
            is_box &= found["is_crowd"] == 0
        sides = np.stack([self.widths[rows], self.heights[rows]], axis=1)[:, None]
        corners, extents = found["box"][..., :2] / sides, found["box"][..., 2:] / sides
        boxes = np.concatenate([corners, corners + extents], axis=-1) * is_box[..., None]
        return boxes.astype(np.float32), np.where(is_box, found["label"], 0).astype(np.int64)

    def read_sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return the heights and widths of images ``rows``, (n,), in pixels, (n, 2)."""
        return np.stack([self.heights[rows], self.widths[rows]], axis=1)

    def read_masks(self, row: int) -> list[Mask]:
        """Return the masks of all objects of an image in COCO's run-length code."""
        assert self.masks, "the dataset was prepared without masks"
        content, ends = self.masks
        stop = int(self.object_ends[row])
        first = stop - int(self._counts[row])
        limits = [int(ends[first - 1]) if first else 0, *ends[first:stop].tolist()]
        size = [int(self.heights[row]), int(self.widths[row])]
        return [
            {"size": size, "counts": bytes(content[low:high])} for low, high in pairwise(limits)
        ]

    def read_mask_crops(self, rows: np.ndarray, size: int) -> np.ndarray:
        """Return masks of rows (n,) within the boxes of ``read_boxes``, uint8 (n, most, …)."""
        boxes, labels = self.read_boxes(rows)
        cropped = np.zeros((*labels.shape, size, size), np.uint8)
        sides = np.tile(self.read_sizes(rows)[:, ::-1], 2)
        for number, row in enumerate(rows.tolist()):
            found = self.read_masks(row)
            (used,) = np.nonzero(labels[number])
            own = boxes[number, used] * sides[number]
            cropped[number, used] = masks.crop([found[k] for k in used], own, size)
        return cropped

    @cached_property
    def _counts(self) -> np.ndarray:
        return np.diff(self.object_ends, prepend=0)

    @cached_property
    def _most(self) -> int:
        return int(self._counts[: self.train_samples].max())


def _plan(parameters: CocoParameters, work: Work) -> Contents:
    counts = parameters.train_samples, parameters.evaluation_samples
    kinds = parameters.masks, parameters.is_subset
    listing = annotations.list_images(work.folder.with_name(REAL), *counts, *kinds)
    objects = Known(Ragged(listing.ends * OBJECT.itemsize), listing.objects.tobytes())
    known = {"objects": objects, **(_arrange_masks(listing) if parameters.masks else {})}
    return Packing(listing.files, {"image_id": listing.image_ids}, known).plan(
        work,
        {
            "class_names": listing.class_names,
            "category_ids": listing.category_ids,
            "images_left_out": listing.left_out,
            "files_sha256": listing.digest,
        },
        packages=("simplejpeg", "Pillow", *(["faster-coco-eval"] if parameters.masks else [])),
    )


def _arrange_masks(listing: Listing) -> dict[str, Known]:
    sizes = np.array([len(code) for code in listing.masks], np.int64)
    ends = sizes.cumsum()
    counts = np.diff(listing.ends, prepend=0)
    ends_of_rows = np.append(0, ends)[listing.ends]
    within = ends - np.repeat(np.append(0, ends_of_rows[:-1]), counts)
    return {
        "masks": Known(Ragged(ends_of_rows), b"".join(listing.masks)),
        "mask_ends": Known(
            Ragged(listing.ends * MASK_END.itemsize), within.astype(MASK_END).tobytes()
        ),
    }


def _open(opened: Opened) -> Photographs:
    arrays, parameters = opened.arrays, opened.manifest.parameters
    return Photographs.open(
        opened,
        class_names=tuple(parameters["class_names"]),
        image_ids=np.array(arrays["facts"]["image_id"]),
        objects=np.frombuffer(np.array(arrays["objects"]), OBJECT),
        object_ends=np.array(arrays["objects_ends"]) // OBJECT.itemsize,
        masks=_open_masks(arrays) if parameters.get("masks") else None,
    )


def _open_masks(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all masks, and where each of them ends there."""
    within = np.frombuffer(np.array(arrays["mask_ends"]), MASK_END).astype(np.int64)
    rows = np.diff(arrays["mask_ends_ends"] // MASK_END.itemsize, prepend=0)
    before = np.concatenate([[0], np.array(arrays["masks_ends"])[:-1]])
    return arrays["masks"], within + np.repeat(before, rows)


def remarks(folder: Path) -> list[str]:
    """Return remarks about a prepared dataset: unusual images, and what training leaves out."""
    photographs = load(folder)
    boxes = photographs.objects[: photographs.object_ends[photographs.train_samples - 1]]
    empty = np.count_nonzero(np.any(boxes["box"][:, 2:] <= 0, axis=1))
    left_out = photographs.manifest.parameters["images_left_out"]
    crowds = "left out too" if photographs.masks is not None else "trained"
    return [
        *packing.remark_on_kinds(folder),
        f"training has {len(boxes):,} boxes, {np.count_nonzero(boxes['is_crowd']):,} of them of "
        f"crowds, which are {crowds}; left out are {left_out:,} images of which nothing is "
        f"annotated, and {empty:,} boxes without area",
    ]


def make_truth(photographs: Photographs, *, with_masks: bool = False) -> Truth:
    """Return the truth of the evaluation split, whose images are numbered from 0.

    Images in which nothing is annotated belong to it: everything found there is wrong.
    """
    first = photographs.train_samples
    rows = slice(first, first + photographs.evaluation_samples)
    objects = photographs.objects[photographs.object_ends[first - 1] :]
    counts = np.diff(photographs.object_ends[first - 1 : rows.stop])
    corners = objects["box"][:, :2]
    return Truth(
        classes=len(photographs.class_names),
        heights=photographs.heights[rows],
        widths=photographs.widths[rows],
        image_numbers=np.repeat(np.arange(photographs.evaluation_samples), counts),
        labels=objects["label"].astype(np.int64),
        boxes=np.concatenate([corners, corners + objects["box"][:, 2:]], axis=1),
        areas=np.array(objects["area"]),
        is_crowd=objects["is_crowd"] > 0,
        masks=[code for row in range(rows.start, rows.stop) for code in photographs.read_masks(row)]
        if with_masks
        else None,
    )


DATASET = dataset.Dataset(CocoParameters, _plan, _open, remarks)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
