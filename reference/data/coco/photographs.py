"""COCO 2017 (Lin et al. 2014, arXiv:1405.0312), packed for sequential reading.

Source
    The folder layout in which COCO is distributed, see ``annotations``: the folder ``COCO2017``
    under the data root, put or linked there by hand.

Stored arrays
    ``images``   ragged: the JPEG files as they are, one after the other
    ``names``    ragged: their names, e.g. ``train2017/000000000009.jpg``, UTF-8
    ``facts``    structured (rows,), fields of FACTS: COCO's id, height and width in pixels, kind
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
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import dataset, preparation, store
from cepheid.reference.data.coco import annotations, masks
from cepheid.reference.data.coco.annotations import OBJECT, Listing
from cepheid.reference.data.columns import Ragged
from cepheid.reference.data.detection.truth import Mask
from cepheid.reference.data.image_files import packing
from cepheid.reference.data.image_files.jpeg import KINDS
from cepheid.reference.data.image_files.packing import PackedFiles
from cepheid.reference.data.store import Manifest, OnProgress, StoreError

GENERATOR = "coco"
GENERATOR_VERSION = 1  # to be raised by every change that stores something else
REAL = "COCO2017"
MASK_END = np.dtype("<i4")
FACTS = np.dtype([("image_id", np.int64), *packing.FACTS])


@dataclass(frozen=True)
class CocoParameters(dataset.Parameters):
    """The ``data`` section of a definition. Raises StoreError for values that make no sense."""

    generator = GENERATOR

    train_samples: int
    evaluation_samples: int
    source: str = REAL
    masks: bool = False

    def __post_init__(self) -> None:
        if self.source != REAL:
            raise StoreError(f"data.source is {self.source!r}, expected {REAL}")
        if min(self.train_samples, self.evaluation_samples) < 1:
            raise StoreError("data.train_samples or evaluation_samples is below 1")

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        return {
            "generator_version": GENERATOR_VERSION,
            "source": self.source,
            "train_samples": self.train_samples,
            "evaluation_samples": self.evaluation_samples,
            **({"masks": True} if self.masks else {}),  # datasets of boxes keep their names
        }


@dataclass(frozen=True)
class Photographs:
    """A prepared dataset.

    ``class_names`` are those of labels 1, 2 and so on. ``image_ids`` are COCO's, ``heights`` and
    ``widths`` in pixels, (rows,). ``objects`` are those of all images in turn, of
    ``annotations.OBJECT``; those of row i end at ``object_ends[i]``. ``masks`` are the bytes of
    their masks and where each ends, if they are prepared.
    """

    train_samples: int
    evaluation_samples: int
    class_names: tuple[str, ...]
    image_ids: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    objects: np.ndarray
    object_ends: np.ndarray
    files: PackedFiles
    manifest: Manifest
    masks: tuple[np.ndarray, np.ndarray] | None = None

    def read_image(self, row: int) -> np.ndarray:
        """Return an image, uint8 (y, x, 3)."""
        return self.files.decode(row)

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


# Datasets -----------------------------------------------------------------------------------------


parameters_of = CocoParameters.parse


def find_distributed_files(folder: Path, parameters: CocoParameters) -> Path:
    """Return the folder where a user puts the distributed files."""
    return folder.with_name(parameters.source)


def prepare(
    folder: Path,
    parameters: CocoParameters,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Pack the dataset into ``folder``; continue an interrupted one, or return if it is finished.

    Raises StoreError as ``preparation.prepare`` does, where the source is missing or not complete,
    and where images are damaged: all of those are named.
    """
    if folder.exists():
        return dataset.read_existing(GENERATOR, folder, parameters.as_json)
    source = find_distributed_files(folder, parameters)
    listing = annotations.list_images(
        source, parameters.train_samples, parameters.evaluation_samples, parameters.masks
    )
    return preparation.prepare(
        folder,
        GENERATOR,
        {
            **parameters.as_json,
            "class_names": listing.class_names,
            "category_ids": listing.category_ids,
            "images_left_out": listing.left_out,
            "files_sha256": listing.digest,
        },
        {
            **listing.files.layout,
            "facts": (FACTS, ()),
            "objects": Ragged(listing.ends * OBJECT.itemsize),
            **_lay_out_masks(listing),
        },
        len(listing.files.names),
        partial(read, listing),
        processes,
        on_progress,
        packages=("simplejpeg", "Pillow", *(["faster-coco-eval"] if parameters.masks else [])),
        judge=partial(packing.check_images, source, folder.with_name(f"{folder.name}-damaged.txt")),
    )


def load(folder: Path) -> Photographs:
    """Map a prepared dataset. Raises StoreError if it is missing, damaged or something else."""
    manifest = dataset.read_manifest(GENERATOR, folder)
    arrays, parameters = store.open_arrays(folder), manifest.parameters
    facts = arrays["facts"]
    return Photographs(
        train_samples=parameters["train_samples"],
        evaluation_samples=parameters["evaluation_samples"],
        class_names=tuple(parameters["class_names"]),
        image_ids=np.array(facts["image_id"]),
        heights=np.array(facts["height"], np.int64),
        widths=np.array(facts["width"], np.int64),
        objects=np.frombuffer(np.array(arrays["objects"]), OBJECT),
        object_ends=np.array(arrays["objects_ends"]) // OBJECT.itemsize,
        files=PackedFiles.open(arrays),
        manifest=manifest,
        masks=_open_masks(arrays) if parameters.get("masks") else None,
    )


def _lay_out_masks(listing: Listing) -> dict[str, Any]:
    if not listing.masks:
        return {}
    sizes = np.array([len(code) for code in listing.masks], np.int64)
    return {
        "masks": Ragged(sizes.cumsum()[listing.ends - 1]),
        "mask_ends": Ragged(listing.ends * MASK_END.itemsize),
    }


def _open_masks(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of all masks, and where each of them ends there."""
    within = np.frombuffer(np.array(arrays["mask_ends"]), MASK_END).astype(np.int64)
    rows = np.diff(arrays["mask_ends_ends"] // MASK_END.itemsize, prepend=0)
    before = np.concatenate([[0], np.array(arrays["masks_ends"])[:-1]])
    return arrays["masks"], within + np.repeat(before, rows)


def read(listing: Listing, rows: range) -> dict[str, Any]:
    """Return the stored arrays of rows.

    Raises StoreError where an image has another size than the annotations say.
    """
    columns, examined = listing.files.read(rows)
    facts = np.zeros(len(rows), FACTS)
    facts["image_id"] = listing.image_ids[rows.start : rows.stop]
    facts["height"], facts["width"], facts["kind"] = np.transpose(examined)
    for row, (height, width, kind) in zip(rows, examined, strict=True):
        stated = tuple(listing.sides[row].tolist())
        if KINDS[kind] != "damaged" and (height, width) != stated:
            raise StoreError(
                f"{listing.files.folder / listing.files.names[row]}: {height} × {width} pixels, "
                f"the annotations say {stated[0]} × {stated[1]}. Unpack the image again."
            )
    first = listing.ends[rows.start - 1] if rows.start else 0
    last = listing.ends[rows.stop - 1]
    stored = {**columns, "facts": facts, "objects": listing.objects[first:last].tobytes()}
    if not listing.masks:
        return stored
    starts = [first, *listing.ends[rows.start : rows.stop - 1]]
    of_rows = [
        listing.masks[start:stop]
        for start, stop in zip(starts, listing.ends[rows.start : rows.stop], strict=True)
    ]
    ends = [np.cumsum([len(code) for code in codes], dtype=MASK_END) for codes in of_rows]
    return {
        **stored,
        "masks": b"".join(code for codes in of_rows for code in codes),
        "mask_ends": np.concatenate(ends).tobytes(),
    }


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
