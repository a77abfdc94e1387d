"""ChestX-ray14 (Wang et al. 2017, arXiv:1705.02315), or drawings in its layout.

Source
    The files as they are distributed, see ``layout``: for ``source: ChestX-ray14`` the folder
    ``ChestX-ray14`` under the data root, put or linked there by hand; for ``source: drawings``
    files that ``drawings`` writes.

Stored arrays
    ``images``    ragged: the PNG files as they are, one after the other
    ``names``     ragged: their names, e.g. ``images/00000001_000.png``, UTF-8
    ``facts``     structured (rows,): patient, height and width in pixels, kind
    ``findings``  uint8 (rows, 14): 1 for each of FINDINGS that there is, in their order

    Rows [0, train) are for training, the next ones for evaluation. No patient is in both.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.columns import Fixed, Known
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.image_files import decoding, packing
from cepheid.reference.data.image_files.crops import Cropping
from cepheid.reference.data.image_files.packing import LabelledImages, Packing
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.radiographs import drawings, layout
from cepheid.reference.data.radiographs.layout import FINDINGS as FINDINGS
from cepheid.reference.data.store import StoreError

DRAWINGS, REAL = "drawings", "ChestX-ray14"
USUAL = ("grey",)  # kinds that need no remark
SMALLEST_PIXELS, LARGEST_PIXELS = 32, 256  # of drawings


@dataclass(frozen=True)
class RadiographParameters(dataset.Parameters):
    """The ``data`` section of a definition. ``seed`` and ``pixels`` are those of drawings."""

    generator = "radiographs"
    recorded = ("source", "train_samples", "evaluation_samples")
    sources = (DRAWINGS, REAL)
    distributed = (REAL,)
    is_named_by_source = True

    source: str
    train_samples: int
    evaluation_samples: int
    seed: int = 20260101
    pixels: int = 48
    is_subset: bool = False

    def __post_init__(self) -> None:
        self.check_source()
        self.check_samples()
        if not SMALLEST_PIXELS <= self.pixels <= LARGEST_PIXELS:
            raise StoreError(
                f"data.pixels is {self.pixels}, expected {SMALLEST_PIXELS} to {LARGEST_PIXELS}"
            )

    def describe(self) -> dict[str, Any]:
        """Return what decides the drawings."""
        drawn = {"seed": self.seed, "pixels": self.pixels, "drawings": drawings.GENERATOR_VERSION}
        return drawn if self.source == DRAWINGS else {}


@dataclass(frozen=True)
class Radiographs(LabelledImages):
    """A prepared dataset of grey images: labels float32 (rows, 14), ``patients`` (rows,)."""

    channels = 1

    patients: np.ndarray


def _plan(parameters: RadiographParameters, work: Work) -> Contents:
    counts = (parameters.train_samples, parameters.evaluation_samples)
    source = parameters.find_distributed_files(work.folder)
    if is_drawn := source is None:
        source = work.folder.with_name(f"{work.folder.name}-files")
        seed, pixels, report = parameters.seed, parameters.pixels, work.report_part(0, 2)
        drawings.draw_files(source, seed, pixels, counts, work.processes, report)
    listing = layout.list_images(source, *counts, parameters.is_subset)
    findings = Known(Fixed(listing.labels.dtype, (len(FINDINGS),)), listing.labels)
    return Packing(
        listing.files, {"patient": listing.patients}, {"findings": findings}, USUAL
    ).plan(
        work,
        {"findings": FINDINGS, "files_sha256": listing.digest},
        packages=("Pillow",),
        parts=1 + is_drawn,
    )


def _open(opened: Opened) -> Radiographs:
    """Open the dataset. Raises StoreError if patients are in both parts."""
    patients = np.array(opened.arrays["facts"]["patient"])
    train = opened.splits["train_samples"]
    layout.refuse_shared_patients(opened.folder, patients[:train], patients[train:])
    labels = np.array(opened.arrays["findings"], np.float32)
    return Radiographs.open(opened, decoding.decode_png, labels=labels, patients=patients)


# What a network sees: all of it, mirrored half the time in training -------------------------------


def make_cropping(pixels: int) -> Cropping:
    """Return views of the whole image, resized to ``pixels`` a side."""
    return Cropping(pixels, pixels, area=(1.0, 1.0), aspect=(1.0, 1.0))


remarks = partial(packing.remark_on_kinds, usual=USUAL)
DATASET = dataset.Dataset(RadiographParameters, _plan, _open, remarks)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
