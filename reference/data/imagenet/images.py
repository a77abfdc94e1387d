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

Every file is read and decoded once, while it is packed. One that cannot be decoded is an error, and
all of them are named. Grey and CMYK images, and files that are no JPEG in spite of their name (the
real ImageNet has some of each), stay as they are and become RGB when they are decoded; ``remarks``
names and counts them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reference.data import dataset, preparation, store
from reference.data.columns import Ragged
from reference.data.imagenet import layout as imagenet_layout
from reference.data.imagenet import shapes
from reference.data.imagenet.jpeg import KINDS, examine
from reference.data.imagenet.layout import Listing
from reference.data.store import Manifest, OnProgress, StoreError

GENERATOR = "imagenet"
GENERATOR_VERSION = 1  # to be raised by every change that stores something else
SHAPES, REAL = "shapes", "ILSVRC2012"
FACTS = np.dtype(
    [("label", np.int32), ("height", np.int32), ("width", np.int32), ("kind", np.uint8)]
)
UNUSUAL = {
    "grey": "grey",
    "cmyk": "CMYK",
    "other": "no JPEG, or one in other colours",
    "imperfect": "with bytes that do not belong there",
}
REMARKS = "remarks.txt"  # in the prepared folder: kind and name of each of those
MOST_NAMED = 20  # damaged files in one message


@dataclass(frozen=True)
class ImageNetParameters:
    """The ``data`` section of a definition. ``seed`` is that of drawn pictures.

    Raises StoreError for values that make no sense.
    """

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
    ``heights`` and ``widths`` in pixels, and ``kinds`` as in ``jpeg`` are (rows,), in memory.
    ``files`` maps the packed file, uint8 (bytes,), in which row i ends at ``ends[i]``.
    """

    classes: tuple[str, ...]
    train_samples: int
    evaluation_samples: int
    labels: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    kinds: np.ndarray
    files: np.ndarray
    ends: np.ndarray
    manifest: Manifest

    def read_file(self, row: int) -> memoryview:
        """Return the JPEG file of a row as it was distributed."""
        start = self.ends[row - 1] if row else 0
        return self.files[start : self.ends[row]].data


# Datasets -----------------------------------------------------------------------------------------


def parameters_of(data: Mapping[str, Any]) -> ImageNetParameters:
    """Parse the ``data`` section of a benchmark's definition.

    Raises StoreError for values that make no sense.
    """
    return ImageNetParameters(**dataset.select_settings(GENERATOR, ImageNetParameters, data))


def folder(data: Mapping[str, Any], data_root: Path) -> Path:
    """Return the folder of the dataset of a ``data`` section, prepared or not."""
    parameters = parameters_of(data)
    rows = parameters.train_samples + parameters.evaluation_samples
    title = f"{GENERATOR}-{parameters.source}-{rows}"
    return data_root / dataset.name_folder(title, parameters.as_json)


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
    with _explain_unreadable():
        listing = imagenet_layout.list_files(
            source, parameters.classes, parameters.train_samples, parameters.evaluation_samples
        )
    return preparation.prepare(
        folder,
        GENERATOR,
        {**parameters.as_json, "class_names": listing.classes, "files_sha256": listing.digest},
        {
            "images": Ragged(np.cumsum(listing.sizes_bytes, dtype=np.int64)),
            "names": Ragged(np.cumsum([len(name) for name in listing.encoded], dtype=np.int64)),
            "facts": (FACTS, ()),
        },
        len(listing.names),
        partial(read, source, listing),
        processes,
        on_progress,
        packages=("simplejpeg", "Pillow"),
        judge=partial(_check_images, source, folder.with_name(f"{folder.name}-damaged.txt")),
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
        kinds=np.array(facts["kind"]),
        files=np.asarray(arrays["images"]),
        ends=np.array(arrays["images_ends"]),
        manifest=manifest,
    )


# Reading the source -------------------------------------------------------------------------------


def read(source: Path, listing: Listing, rows: range) -> dict[str, Any]:
    """Return the stored arrays of rows; a file that cannot be decoded has the kind ``damaged``."""
    files = []
    facts = np.zeros(len(rows), FACTS)
    for at, row in enumerate(rows):
        path = source / listing.names[row]
        with _explain_unreadable():
            content = path.read_bytes()
        if len(content) != listing.sizes_bytes[row]:
            raise StoreError(f"{path}: changed while it was read. Prepare again.")
        files.append(content)
        facts[at] = (listing.labels[row], *examine(content))
    names = listing.encoded[rows.start : rows.stop]
    return {"images": b"".join(files), "names": b"".join(names), "facts": facts}


@contextmanager
def _explain_unreadable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename}: cannot be read ({error.strerror}). Mend that and prepare again."
        ) from error


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


def _check_images(source: Path, damage: Path, folder: Path) -> None:
    """Write REMARKS. Raises StoreError if images are damaged.

    The error names some of them; if there are many, the file ``damage`` names all.
    """
    arrays = store.open_arrays(folder)
    damaged = _list_names(arrays, "damaged")
    if damaged:
        named = "".join(f"\n  {source / name}" for name in damaged[:MOST_NAMED])
        more = ""
        if len(damaged) > MOST_NAMED:
            damage.write_text("".join(f"{name}\n" for name in damaged), encoding="utf-8")
            more = f"\n  and {len(damaged) - MOST_NAMED:,} more; {damage} names all"
        raise StoreError(
            f"{source}: damaged: {len(damaged):,} of {len(arrays['facts']):,} images cannot be "
            f"decoded to their end. Unpack these again, then prepare again:{named}{more}"
        )
    lines = [f"{kind}\t{name}\n" for kind in UNUSUAL for name in _list_names(arrays, kind)]
    if lines:
        (folder / REMARKS).write_text("".join(lines), encoding="utf-8")


def remarks(folder: Path) -> list[str]:
    """Return remarks about a prepared dataset, e.g. how many of its images are grey."""
    kinds = load(folder).kinds
    counts = {kind: np.count_nonzero(kinds == KINDS.index(kind)) for kind in UNUSUAL}
    found = [f"{count:,} {UNUSUAL[kind]}" for kind, count in counts.items() if count]
    if not found:
        return []
    return [f"unusual images, which are used: {'; '.join(found)} ({folder / REMARKS})"]


def _list_names(arrays: Mapping[str, np.ndarray], kind: str) -> list[str]:
    ends, text = arrays["names_ends"], arrays["names"]
    rows = np.flatnonzero(arrays["facts"]["kind"] == KINDS.index(kind))
    starts = [int(ends[row - 1]) if row else 0 for row in rows]
    return [bytes(text[a : ends[row]]).decode() for a, row in zip(starts, rows, strict=True)]
