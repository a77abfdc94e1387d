"""The files of ChestX-ray14 as they are distributed.

``Data_Entry_2017.csv`` (or ``Data_Entry_2017_v2020.csv``, its later edition) says of each image
what was found and whose it is. ``train_val_list.txt`` and ``test_list.txt`` are the official split.
The images lie in ``images/``, where the twelve archives unpack, or in ``images_001/images/`` to
``images_012/images/``.

A patient has many images, and a network recognises patients. So the split is one of patients: a
patient with images in both lists is refused.
"""

import csv
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cepheid.reference.data.image_files import decoding
from cepheid.reference.data.image_files.packing import SourceFiles
from cepheid.reference.data.store import StoreError, explain_unreadable

FINDINGS = (  # in the order of Wang et al. 2017 (arXiv:1705.02315), whose names they have
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
"""What may be found. Every array of labels or scores has a column for each."""
NO_FINDING = "No Finding"
BETWEEN_FINDINGS = "|"  # in the table
TABLES = ("Data_Entry_2017.csv", "Data_Entry_2017_v2020.csv")
LISTS = ("train_val_list.txt", "test_list.txt")
IMAGE, LABELS, PATIENT = "Image Index", "Finding Labels", "Patient ID"
IMAGES = "images"
ARCHIVES = tuple(f"images_{number:03}/images" for number in range(1, 13))
PLAIN_NAME = re.compile(r"\d{8}_\d{3}\.png", re.ASCII)
MOST_NAMED = 5  # patients in a message


@dataclass(frozen=True)
class Entry:
    """What the table says of an image."""

    patient: int
    findings: frozenset[str]


@dataclass(frozen=True)
class Listing:
    """All images, training first: files, labels uint8 (rows, 14), patients int64 (rows,)."""

    files: SourceFiles
    labels: np.ndarray
    patients: np.ndarray
    digest: str


def list_images(source: Path, train: int, evaluation: int, is_subset: bool = False) -> Listing:
    """Read table and lists, and the sizes of the image files without opening them.

    Raises StoreError where something is missing, cannot be read or contradicts itself, if a patient
    has images in both lists, or if there are not as many images as there should be.
    """
    table = _find_table(source)
    digest = hashlib.sha256()
    entries = _read_entries(table, digest)
    parts = [_read_list(source / name, digest) for name in LISTS]
    if is_subset:  # the first of those that are there
        there = _find_places(source)
        parts = [
            [image for image in part if image in there][:count]
            for part, count in zip(parts, (train, evaluation), strict=True)
        ]
    for name, part, wanted in zip(LISTS, parts, (train, evaluation), strict=True):
        if len(part) != wanted:
            fix = "Give a smaller --limit." if is_subset else "Put the official list there."
            raise StoreError(f"{source / name}: {len(part):,} images, expected {wanted:,}. {fix}")
        if unknown := [image for image in part if image not in entries]:
            raise StoreError(
                f"{source / name}: {table.name} says nothing of {unknown[0]}. Put the official "
                "list and the table of the same edition there."
            )
    images = [*parts[0], *parts[1]]
    if len(set(images)) < len(images):
        raise StoreError(
            f"{source}: an image is listed twice in {LISTS[0]} and {LISTS[1]}. Put the official "
            "lists there."
        )
    patients = np.array([entries[image].patient for image in images], np.int64)
    refuse_shared_patients(source, patients[:train], patients[train:])
    labels = [[name in entries[image].findings for name in FINDINGS] for image in images]
    files = _find_files(source, images)
    digest.update("\n".join(images).encode() + files.sizes_bytes.astype("<i8").tobytes())
    return Listing(files, np.array(labels, np.uint8), patients, digest.hexdigest())


def refuse_shared_patients(where: Path, train: np.ndarray, evaluation: np.ndarray) -> None:
    """Raise StoreError if a patient, integers (n,), is in training and evaluation."""
    shared = np.intersect1d(train, evaluation)
    if len(shared):
        some = ", ".join(map(str, shared[:MOST_NAMED].tolist()))
        raise StoreError(
            f"{where}: {len(shared):,} patients have images in training and evaluation ({some}"
            f"{', …' if len(shared) > MOST_NAMED else ''}). A network recognises patients, so its "
            "quality would be too good. Split by patient; the official lists do."
        )


def _find_table(source: Path) -> Path:
    for name in TABLES:
        if (source / name).is_file():
            return source / name
    raise StoreError(
        f"{source / TABLES[0]}: there is no such file. Put ChestX-ray14 there, or link it: "
        f"{TABLES[0]}, {' and '.join(LISTS)}, and {IMAGES}/ as its archives unpack."
    )


def _read_entries(table: Path, digest: "hashlib._Hash") -> Mapping[str, Entry]:
    """Return what the table says, by the names of images."""
    rows = csv.DictReader(_read_text(table, digest).splitlines())
    try:
        return _parse_entries(table, rows)
    except csv.Error as error:
        raise StoreError(
            f"{table}: line {rows.line_num}: is no row of a table ({error}). Download it again."
        ) from error


def _parse_entries(table: Path, rows: "csv.DictReader[str]") -> Mapping[str, Entry]:
    entries: dict[str, Entry] = {}
    if missing := {IMAGE, LABELS, PATIENT} - set(rows.fieldnames or ()):
        raise StoreError(f"{table}: has no column {min(missing)!r}. Download it again.")
    for row in rows:
        found = frozenset((row[LABELS] or "").split(BETWEEN_FINDINGS)) - {NO_FINDING}
        patient = row[PATIENT] or ""
        if unknown := found - set(FINDINGS):
            raise StoreError(
                f"{table}: line {rows.line_num}: finding {min(unknown)!r}, expected those of "
                f"ChestX-ray14 or {NO_FINDING!r}. Download it again."
            )
        if not patient.isdecimal() or len(patient) > 9 or row[IMAGE] in entries:
            raise StoreError(
                f"{table}: line {rows.line_num}: patient {patient!r} of image {row[IMAGE]!r}, "
                "expected a number, and each image once. Download it again."
            )
        entries[row[IMAGE]] = Entry(int(patient), found)
    return entries


def _read_list(path: Path, digest: "hashlib._Hash") -> Sequence[str]:
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file. Put the official list there.")
    images = _read_text(path, digest).split()
    for image in images:
        if not PLAIN_NAME.fullmatch(image):
            raise StoreError(
                f"{path}: {image[:40]!r} is not the name of an image, such as 00000001_000.png. "
                "Put the official list there."
            )
    return images


def _read_text(path: Path, digest: "hashlib._Hash") -> str:
    with explain_unreadable():
        content = path.read_bytes()
    digest.update(content)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise StoreError(f"{path}: is no text ({error.reason}). Download it again.") from error


def _find_places(source: Path) -> Mapping[str, tuple[str, int]]:
    """Return place and size of each file in the folders of the archives, by its name."""
    places: dict[str, tuple[str, int]] = {}
    with explain_unreadable():
        for folder in (IMAGES, *ARCHIVES):
            if (source / folder).is_dir():
                for file in (source / folder).iterdir():
                    places.setdefault(file.name, (f"{folder}/{file.name}", file.stat().st_size))
    return places


def _find_files(source: Path, images: Sequence[str]) -> SourceFiles:
    """Find the files in the folders of the archives, with one listing of each folder."""
    sizes = _find_places(source)
    if missing := [image for image in images if image not in sizes]:
        raise StoreError(
            f"{source / IMAGES / missing[0]}: there is no such file, nor {len(missing) - 1:,} "
            "others. Unpack all twelve archives there."
        )
    found = [sizes[image] for image in images]
    return SourceFiles(
        source,
        [f"{IMAGES}/{image}" for image in images],
        np.array([size for _, size in found]),
        decoding.examine_png,
        places=[place for place, _ in found],
    )
