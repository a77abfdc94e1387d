"""ImageNet (ILSVRC 2012, Russakovsky et al. 2015, arXiv:1409.0575), packed for sequential reading.

Source
    The folder layout in which ImageNet is distributed, see ``imagenet_layout``: for ``source:
    ILSVRC2012`` the folder ``ILSVRC2012`` under the data root, put or linked there by hand because
    of its licence; for ``source: shapes`` pictures that ``shapes`` draws there.

Stored arrays
    ``images``  ragged: the JPEG files as they are, one after the other
    ``names``   ragged: their names, e.g. ``train/n01440764/n01440764_10026.JPEG``, UTF-8
    ``facts``   structured (rows,), fields of FACTS: label, height and width in pixels, kind

    Rows [0, train) are for training, the next ones for validation; labels count the class folders
    in alphabetical order from 0.

``image_files.packing`` says what becomes of files that are damaged, grey or no JPEG.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import dataset, preparation, store
from cepheid.reference.data.image_files import packing
from cepheid.reference.data.image_files.packing import PackedFiles, SourceFiles
from cepheid.reference.data.imagenet import layout as imagenet_layout
from cepheid.reference.data.imagenet import shapes
from cepheid.reference.data.store import Manifest, OnProgress, StoreError, explain_unreadable

GENERATOR = "imagenet"
GENERATOR_VERSION = 1  # to be raised by every change that stores something else
SHAPES, REAL = "shapes", "ILSVRC2012"
FACTS = np.dtype([("label", np.int32), *packing.FACTS])


@dataclass(frozen=True)
class ImageNetParameters(dataset.Parameters):
    """The ``data`` section of a definition. ``seed`` is that of drawn pictures.

    Raises StoreError for values that make no sense.
    """

    generator = GENERATOR

    source: str
    classes: int
    train_samples: int
    evaluation_samples: int
    seed: int = 20260101

    def __post_init__(self) -> None:
        if self.source not in (SHAPES, REAL):
            raise StoreError(f"data.source is {self.source!r}, expected {SHAPES} or {REAL}")
        counts = (self.classes, self.train_samples, self.evaluation_samples)
        if min(counts) < 1 or (self.source == SHAPES and self.classes > len(shapes.CLASSES)):
            raise StoreError(
                f"data.classes, train_samples and evaluation_samples are {counts}, expected 1 or "
                f"more of each, and of {SHAPES} at most {len(shapes.CLASSES)} classes"
            )

    @property
    def title(self) -> str:
        """Return what a reader sees first in the name of the folder, with the source."""
        return f"{GENERATOR}-{self.source}-{self.rows}"

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        drawn = {"seed": self.seed, "shapes_version": shapes.GENERATOR_VERSION}
        return {
            "generator_version": GENERATOR_VERSION,
            "source": self.source,
            "classes": self.classes,
            "train_samples": self.train_samples,
            "evaluation_samples": self.evaluation_samples,
            **(drawn if self.source == SHAPES else {}),
        }


@dataclass(frozen=True)
class Images:
    """A prepared dataset.

    ``classes`` are the names of the class folders, in the order of the labels. ``labels``,
    ``heights`` and ``widths`` in pixels are (rows,), in memory.
    """

    classes: tuple[str, ...]
    train_samples: int
    evaluation_samples: int
    labels: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    files: PackedFiles
    manifest: Manifest


# Datasets -----------------------------------------------------------------------------------------


parameters_of = ImageNetParameters.parse


def find_distributed_files(folder: Path, parameters: ImageNetParameters) -> Path | None:
    """Return the folder where a user puts the distributed files, or None if all is generated."""
    return folder.with_name(REAL) if parameters.source == REAL else None


def _find_source(folder: Path, parameters: ImageNetParameters) -> Path:
    """Return the folder of the files that ``folder`` is packed from."""
    generated = folder.with_name(f"{folder.name}-files")
    return find_distributed_files(folder, parameters) or generated


def prepare(
    folder: Path,
    parameters: ImageNetParameters,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Pack the dataset into ``folder``; continue an interrupted one, or return if it is finished.

    Raises StoreError as ``preparation.prepare`` does, where the source is missing or not complete,
    and where images are damaged: all of those are named.
    """
    if folder.exists():
        return dataset.read_existing(GENERATOR, folder, parameters.as_json)
    source = _find_source(folder, parameters)
    on_progress = on_progress or (lambda done, total: None)
    if parameters.source == SHAPES:
        _draw(source, parameters, processes, _split_progress(on_progress, 0))
        on_progress = _split_progress(on_progress, 1)
    with explain_unreadable():
        listing = imagenet_layout.list_files(
            source, parameters.classes, parameters.train_samples, parameters.evaluation_samples
        )
    files = SourceFiles(source, listing.names, listing.sizes_bytes)
    return preparation.prepare(
        folder,
        GENERATOR,
        {**parameters.as_json, "class_names": listing.classes, "files_sha256": listing.digest},
        {**files.layout, "facts": (FACTS, ())},
        len(listing.names),
        partial(read, files, listing.labels),
        processes,
        on_progress,
        packages=("simplejpeg", "Pillow"),
        judge=partial(packing.check_images, source, folder.with_name(f"{folder.name}-damaged.txt")),
    )


def load(folder: Path) -> Images:
    """Map a prepared dataset. Raises StoreError if it is missing, damaged or something else."""
    manifest = dataset.read_manifest(GENERATOR, folder)
    arrays, parameters = store.open_arrays(folder), manifest.parameters
    facts = arrays["facts"]
    return Images(
        classes=tuple(parameters["class_names"]),
        train_samples=parameters["train_samples"],
        evaluation_samples=parameters["evaluation_samples"],
        labels=np.array(facts["label"], np.int64),
        heights=np.array(facts["height"]),
        widths=np.array(facts["width"]),
        files=PackedFiles.open(arrays),
        manifest=manifest,
    )


# Reading the source -------------------------------------------------------------------------------


def read(files: SourceFiles, labels: np.ndarray, rows: range) -> dict[str, Any]:
    """Return the stored arrays of rows; ``labels`` are those of all, (rows,)."""
    columns, examined = files.read(rows)
    facts = np.zeros(len(rows), FACTS)
    facts["label"] = labels[rows.start : rows.stop]
    facts["height"], facts["width"], facts["kind"] = np.transpose(examined)
    return {**columns, "facts": facts}


def _draw(
    source: Path, parameters: ImageNetParameters, processes: int | None, on_progress: OnProgress
) -> None:
    parts = {
        imagenet_layout.TRAIN: parameters.train_samples,
        imagenet_layout.VALIDATION: parameters.evaluation_samples,
    }
    classes = shapes.CLASSES[: parameters.classes]
    shapes.draw_files(source, parameters.seed, classes, parts, processes, on_progress)


def _split_progress(on_progress: OnProgress, half: int) -> OnProgress:
    """Return the progress of one half: 0 for drawing files, 1 for packing them."""
    return lambda done, total: on_progress((half * total + done) // 2, total)
