"""ChestX-ray14 (Wang et al. 2017, arXiv:1705.02315), or drawings in its layout, packed.

Source
    The files as they are distributed, see ``layout``: for ``source: ChestX-ray14`` the folder
    ``ChestX-ray14`` under the data root, put or linked there by hand; for ``source: drawings``
    files that ``drawings`` writes.

Stored arrays
    ``images``    ragged: the PNG files as they are, one after the other
    ``names``     ragged: their names, e.g. ``images/00000001_000.png``, UTF-8
    ``facts``     structured (rows,), fields of FACTS: patient, height and width in pixels, kind
    ``findings``  uint8 (rows, 14): 1 for each finding that there is, in the order of ``findings``

    Rows [0, train) are for training, the next ones for evaluation. No patient is in both.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import dataset, preparation, store
from cepheid.reference.data.image_files import packing, png
from cepheid.reference.data.image_files.packing import PackedFiles
from cepheid.reference.data.radiographs import drawings, layout
from cepheid.reference.data.radiographs.findings import FINDINGS
from cepheid.reference.data.radiographs.layout import Listing
from cepheid.reference.data.store import Manifest, OnProgress, StoreError

GENERATOR = "radiographs"
GENERATOR_VERSION = 1  # to be raised by every change that stores something else
DRAWINGS, REAL = "drawings", "ChestX-ray14"
FACTS = np.dtype([("patient", np.int64), *packing.FACTS])
USUAL = ("grey",)  # kinds that need no remark
SMALLEST_PIXELS, LARGEST_PIXELS = 32, 256  # of drawings


@dataclass(frozen=True)
class RadiographParameters(dataset.Parameters):
    """The ``data`` section of a definition. ``seed`` and ``pixels`` are those of drawings.

    Raises StoreError for values that make no sense.
    """

    generator = GENERATOR

    source: str
    train_samples: int
    evaluation_samples: int
    seed: int = 20260101
    pixels: int = 48

    def __post_init__(self) -> None:
        if self.source not in (DRAWINGS, REAL):
            raise StoreError(f"data.source is {self.source!r}, expected {DRAWINGS} or {REAL}")
        if min(self.train_samples, self.evaluation_samples) < 1:
            raise StoreError("data.train_samples or evaluation_samples is below 1")
        if not SMALLEST_PIXELS <= self.pixels <= LARGEST_PIXELS:
            raise StoreError(
                f"data.pixels is {self.pixels}, expected {SMALLEST_PIXELS} to {LARGEST_PIXELS}"
            )

    @property
    def title(self) -> str:
        """Return what a reader sees first in the name of the folder, with the source."""
        return f"{GENERATOR}-{self.source}-{self.rows}"

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        drawn = {"seed": self.seed, "pixels": self.pixels, "drawings": drawings.GENERATOR_VERSION}
        return {
            "generator_version": GENERATOR_VERSION,
            "source": self.source,
            "train_samples": self.train_samples,
            "evaluation_samples": self.evaluation_samples,
            **(drawn if self.source == DRAWINGS else {}),
        }


class GreyFiles(PackedFiles):
    """Packed PNG files, decoded to grey."""

    def decode(self, row: int) -> np.ndarray:
        """Decode the file of a row, uint8 (height, width, 1)."""
        return png.decode(self.read(row))


@dataclass(frozen=True)
class Radiographs:
    """A prepared dataset.

    ``labels`` are float32 (rows, 14); ``patients``, ``heights`` and ``widths`` are (rows,).
    """

    train_samples: int
    evaluation_samples: int
    labels: np.ndarray
    patients: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    files: GreyFiles
    manifest: Manifest


# Datasets -----------------------------------------------------------------------------------------


parameters_of = RadiographParameters.parse


def find_distributed_files(folder: Path, parameters: RadiographParameters) -> Path | None:
    """Return the folder where a user puts the distributed files, or None if all is drawn."""
    return folder.with_name(REAL) if parameters.source == REAL else None


def prepare(
    folder: Path,
    parameters: RadiographParameters,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Pack the dataset into ``folder``; continue an interrupted one, or return if it is finished.

    Raises StoreError as ``preparation.prepare`` does, where the source is missing, not complete or
    not split by patient, and where images are damaged: all of those are named.
    """
    if folder.exists():
        return dataset.read_existing(GENERATOR, folder, parameters.as_json)
    source = find_distributed_files(folder, parameters) or _draw(
        folder, parameters, processes, on_progress or (lambda done, total: None)
    )
    listing = layout.list_images(source, parameters.train_samples, parameters.evaluation_samples)
    damage = folder.with_name(f"{folder.name}-damaged.txt")
    return preparation.prepare(
        folder,
        GENERATOR,
        {**parameters.as_json, "findings": FINDINGS, "files_sha256": listing.digest},
        {
            **listing.files.layout,
            "facts": (FACTS, ()),
            "findings": (np.dtype(np.uint8), (len(FINDINGS),)),
        },
        len(listing.files.names),
        partial(read, listing),
        processes,
        on_progress,
        packages=("Pillow",),
        judge=partial(packing.check_images, source, damage, usual=USUAL),
    )


def _draw(
    folder: Path,
    parameters: RadiographParameters,
    processes: int | None,
    on_progress: OnProgress,
) -> Path:
    """Draw the files that ``folder`` is packed from, and return their folder."""
    source = folder.with_name(f"{folder.name}-files")
    counts = (parameters.train_samples, parameters.evaluation_samples)
    drawings.draw_files(source, parameters.seed, parameters.pixels, counts, processes, on_progress)
    return source


def read(listing: Listing, rows: range) -> dict[str, Any]:
    """Return the stored arrays of rows."""
    columns, examined = listing.files.read(rows)
    facts = np.zeros(len(rows), FACTS)
    facts["patient"] = listing.patients[rows.start : rows.stop]
    facts["height"], facts["width"], facts["kind"] = np.transpose(examined)
    return {**columns, "facts": facts, "findings": listing.labels[rows.start : rows.stop]}


def load(folder: Path) -> Radiographs:
    """Map a prepared dataset.

    Raises StoreError if it is missing, damaged or something else, or if patients are in both parts.
    """
    manifest = dataset.read_manifest(GENERATOR, folder)
    arrays, train = store.open_arrays(folder), int(manifest.parameters["train_samples"])
    facts = arrays["facts"]
    patients = np.array(facts["patient"])
    layout.refuse_shared_patients(folder, patients[:train], patients[train:])
    return Radiographs(
        train_samples=train,
        evaluation_samples=manifest.parameters["evaluation_samples"],
        labels=np.array(arrays["findings"], np.float32),
        patients=patients,
        heights=np.array(facts["height"]),
        widths=np.array(facts["width"]),
        files=GreyFiles.open(arrays),
        manifest=manifest,
    )


remarks = partial(packing.remark_on_kinds, usual=USUAL)
