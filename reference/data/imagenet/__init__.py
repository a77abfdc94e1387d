"""ImageNet (ILSVRC 2012, Russakovsky et al. 2015, arXiv:1409.0575), or a small replica of it.

Source
    The folder layout in which ImageNet is distributed, see ``layout``: for ``source: ILSVRC2012``
    the folder ``ILSVRC2012`` under the data root, put or linked there by hand because of its
    licence; for ``source: trios`` trios of shapes
    and for ``source: shapes`` wallpapers of them, which we draw there.

Stored arrays
    ``images``  ragged: the JPEG files as they are, one after the other
    ``names``   ragged: their names, e.g. ``train/n01440764/n01440764_10026.JPEG``, UTF-8
    ``facts``   structured (rows,): label, height and width in pixels, kind

    Rows [0, train) are for training, the next ones for validation; labels count the class folders
    in alphabetical order from 0.

``image_files.packing`` says what becomes of files that are damaged, grey or no JPEG.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.image_files import drawn, packing, trios, wallpapers
from cepheid.reference.data.image_files.packing import LabelledImages, Packing, SourceFiles
from cepheid.reference.data.imagenet import layout
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import StoreError, explain_unreadable

REAL = "ILSVRC2012"
DRAWN = {"shapes": wallpapers, "trios": trios}


@dataclass(frozen=True)
class ImageNetParameters(dataset.Parameters):
    """The ``data`` section of a definition. ``seed`` is that of drawn pictures."""

    generator = "imagenet"
    recorded = ("source", "classes", "train_samples", "evaluation_samples")
    sources = (*DRAWN, REAL)
    distributed = (REAL,)
    is_named_by_source = True

    source: str
    classes: int
    train_samples: int
    evaluation_samples: int
    seed: int = 20260101
    is_subset: bool = False

    def __post_init__(self) -> None:
        self.check_source()
        counts = (self.classes, self.train_samples, self.evaluation_samples)
        most = len(DRAWN[self.source].CLASSES) if self.source in DRAWN else self.classes
        if min(counts) < 1 or self.classes > most:
            raise StoreError(
                f"data.classes, train_samples and evaluation_samples are {counts}, expected 1 or "
                f"more of each, and of {self.source} at most {most} classes"
            )

    def describe(self) -> dict[str, Any]:
        """Return what decides the drawn pictures."""
        if self.source not in DRAWN:
            return {}
        version = DRAWN[self.source].GENERATOR_VERSION
        return {"seed": self.seed, f"{self.source}_version": version}


@dataclass(frozen=True)
class Images(LabelledImages):
    """A prepared dataset; ``classes`` are the class folders in the order of the labels."""

    classes: tuple[str, ...]


def _plan(parameters: ImageNetParameters, work: Work) -> Contents:
    source = parameters.find_distributed_files(work.folder)
    counts = {
        layout.TRAIN: parameters.train_samples,
        layout.VALIDATION: parameters.evaluation_samples,
    }
    if is_drawn := source is None:
        source = work.folder.with_name(f"{work.folder.name}-files")
        kind, report = DRAWN[parameters.source], work.report_part(0, 2)
        classes, draw = (
            kind.CLASSES[: parameters.classes],
            partial(kind.draw_picture, parameters.seed),
        )
        drawn.draw_files(source, draw, classes, counts, work.processes, report)
    with explain_unreadable():
        list_files = layout.list_some_files if parameters.is_subset else layout.list_files
        listing = list_files(source, parameters.classes, *counts.values())
    return Packing(
        SourceFiles(source, listing.names, listing.sizes_bytes, places=listing.places),
        {"label": listing.labels.astype(np.int32)},
    ).plan(
        work,
        {"class_names": listing.classes, "files_sha256": listing.digest},
        packages=("simplejpeg", "Pillow"),
        parts=1 + is_drawn,
    )


def _open(opened: Opened) -> Images:
    return Images.open(
        opened,
        labels=np.array(opened.arrays["facts"]["label"], np.int64),
        classes=tuple(opened.manifest.parameters["class_names"]),
    )


DATASET = dataset.Dataset(ImageNetParameters, _plan, _open, packing.remark_on_kinds)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
