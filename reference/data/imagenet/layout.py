"""Image files in the folders in which ImageNet is distributed.

Training images are ``train/<class>/<name>.JPEG``. Validation images lie in the same way under
``val``, or all of them directly in ``val``, as they were distributed. Both are listed alike, so
that the same bytes are prepared. The classes of the latter are read from the first of these files
that is there, in the set's folder or below ``devkit/data`` or ``ILSVRC2012_devkit_t12/data``:

    ``LOC_val_solution.csv``                        Kaggle's: name, class folder and boxes
    ``val.txt``                                     Caffe's: name and label, from 0
    ``imagenet_2012_validation_synset_labels.txt``  TensorFlow's: class folders, in order of names
    ``ILSVRC2012_validation_ground_truth.txt``      the devkit's: ILSVRC2012_ID in order of names,
                                                    explained by ``meta.mat`` beside it
"""

import csv
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from cepheid.reference.data.store import StoreError
from cepheid.rules.errors import raise_if_refused

TRAIN, VALIDATION = "train", "val"
SUFFIXES = (".jpeg", ".jpg")
DEVKIT = ("", "devkit/data", "ILSVRC2012_devkit_t12/data")
NAMED = 5  # folders or files in one message

Files = dict[str, int]
"""Sizes in bytes, by name, in alphabetical order."""


@dataclass(frozen=True)
class Listing:
    """A list of all files of a set, training first: names, labels, sizes.

    Names have class folders; ``places`` are where the files lie, relative to the set's folder.
    """

    classes: tuple[str, ...]
    names: tuple[str, ...]
    places: tuple[str, ...]
    labels: np.ndarray
    sizes_bytes: np.ndarray

    @property
    def digest(self) -> str:
        """The SHA-256 of names, labels and sizes."""
        sha = hashlib.sha256("\n".join(self.names).encode())
        sha.update(self.labels.astype("<i8").tobytes())
        sha.update(self.sizes_bytes.astype("<i8").tobytes())
        return sha.hexdigest()


def list_files(source: Path, classes: int, train: int, validation: int) -> Listing:
    """List names, classes and sizes of all files in ``source`` without opening them.

    Raises StoreError where a folder is missing, or there are not as many ``classes``, ``train`` or
    ``validation`` images as there should be.
    """
    _check_folders(source)
    by_class = {name: _list_images(source / TRAIN / name) for name in _list_folders(source / TRAIN)}
    _check_training(source / TRAIN, by_class, classes, train)
    names = tuple(by_class)
    rows = [
        (f"{TRAIN}/{name}/{file}", f"{TRAIN}/{name}/{file}", label, size)
        for label, (name, files) in enumerate(by_class.items())
        for file, size in files.items()
    ]
    rows += _list_validation(source, names, validation)
    paths, places, labels, sizes = zip(*rows, strict=True)
    empty = [place for place, size in zip(places, sizes, strict=True) if size == 0]
    if empty:
        raise StoreError(
            f"{source}: {_format_names(empty, 'files are empty', 'file is empty')}. Unpack again."
        )
    return Listing(names, paths, places, np.array(labels, np.int64), np.array(sizes, np.int64))


def list_some_files(source: Path, classes: int, train: int, validation: int) -> Listing:
    """List the first files of as many classes as there are, for a run that only tries.

    There may be fewer classes and more files. A validation image of which no list tells the class
    counts as one of the first class. Raises StoreError where there are fewer files.
    """
    _check_folders(source)
    parts = []
    for part, count in ((TRAIN, train), (VALIDATION, validation)):
        folders = _list_folders(source / part)
        found = sorted(
            (place, name, f"{name}/{file}", size)
            for name in folders[:classes]
            for place, (file, size) in enumerate(_list_images(source / part / name).items())
        )
        if part == VALIDATION and not folders:
            found = _list_some_flat(source, _list_folders(source / TRAIN))
        if len(found) < count:
            raise StoreError(
                f"{source / part}: {len(found):,} images, --limit asks for {count:,}; fix: give a "
                "smaller one"
            )
        parts.append(sorted((name, file, size) for _, name, file, size in found[:count]))
    ordered = tuple(sorted({name for part in parts for name, _, _ in part if name})[:classes])
    rows = [
        (
            f"{part}/{name or ordered[0]}/{Path(place).name}",
            f"{part}/{place}",
            ordered.index(name) if name in ordered else 0,
            size,
        )
        for part, found in zip((TRAIN, VALIDATION), parts, strict=True)
        for name, place, size in found
    ]
    names, places, labels, sizes = zip(*rows, strict=True)
    return Listing(ordered, names, places, np.array(labels, np.int64), np.array(sizes, np.int64))


def _list_some_flat(source: Path, classes: Sequence[str]) -> list[tuple[int, str, str, int]]:
    """Return validation images in one folder as rows of 0, class, name and size in bytes."""
    images = _list_images(source / VALIDATION)
    try:
        labels = _read_ground_truth(source, list(images), classes)
    except StoreError:  # the list is missing, or the images or the classes are not complete
        return [(0, "", file, size) for file, size in images.items()]
    names = (classes[label] for label in labels)
    return [(0, name, *item) for name, item in zip(names, images.items(), strict=True)]


def _check_folders(source: Path) -> None:
    for part in (TRAIN, VALIDATION):
        if not (source / part).is_dir():
            raise StoreError(
                f"{source / part}: there is no such folder. Put ImageNet there, or link it: "
                f"{TRAIN}/<class>/*.JPEG and {VALIDATION}/, as its archives unpack."
            )


def _check_training(folder: Path, found: Mapping[str, Files], classes: int, images: int) -> None:
    packed = sorted(path.name for path in folder.glob("*.tar"))
    if packed:
        raise StoreError(
            f"{folder}: {_format_names(packed, 'archives are', 'archive is')} not unpacked. Unpack "
            f"each into a folder of its name and delete it."
        )
    empty = [name for name, files in found.items() if not files]
    if empty or len(found) != classes:
        without = f"; without images: {', '.join(empty[:NAMED])}" if empty else ""
        raise StoreError(
            f"{folder}: {len(found) - len(empty):,} class folders with images, expected "
            f"{classes:,}{without}. Unpack the missing ones and prepare again."
        )
    count = sum(map(len, found.values()))
    if count != images:
        fewest = sorted(found, key=lambda name: len(found[name]))[:3]
        counts = ", ".join(f"{name} with {len(found[name])}" for name in fewest)
        raise StoreError(
            f"{folder}: {count:,} images, expected {images:,}. The folders with fewest are "
            f"{counts}. Unpack again what is not complete."
        )


def _list_validation(
    source: Path, classes: Sequence[str], images: int
) -> list[tuple[str, str, int, int]]:
    """Return names, places, labels and sizes of the validation images, in the order of classes."""
    folder = source / VALIDATION
    folders, flat = _list_folders(folder), _list_images(folder)
    if folders and flat:
        raise StoreError(
            f"{folder}: holds class folders and images beside them ({next(iter(flat))}), so it is "
            f"half sorted. Sort all images into class folders, or none."
        )
    if folders:
        _check_same(folder, folders, classes)
        by_class = [(name, _list_images(folder / name)) for name in classes]
        found = {f"{name}/{file}": size for name, files in by_class for file, size in files.items()}
        labels = [label for label, (_, files) in enumerate(by_class) for _ in files]
    else:
        found = flat
        labels = [] if len(flat) != images else _read_ground_truth(source, list(flat), classes)
    if len(found) != images:
        raise StoreError(
            f"{folder}: {len(found):,} images, expected {images:,}. Unpack again what is not "
            f"complete."
        )
    rows = [
        (f"{VALIDATION}/{classes[label]}/{Path(name).name}", f"{VALIDATION}/{name}", label, size)
        for (name, size), label in zip(found.items(), labels, strict=True)
    ]
    return sorted(rows, key=lambda row: (row[2], row[0]))


def _check_same(folder: Path, found: Sequence[str], classes: Sequence[str]) -> None:
    missing = [name for name in classes if name not in found]
    strange = [name for name in found if name not in classes]
    if missing or strange:
        what = f"no class folder {missing[0]}" if missing else f"a class folder {strange[0]}"
        beside = "which train has" if missing else "which train has not"
        count = len(missing or strange)
        more = f" ({count:,} such folders)" if count > 1 else ""
        raise StoreError(f"{folder}: has {what}, {beside}{more}. Unpack what is missing.")


# The classes of validation images in one folder ---------------------------------------------------


def _read_ground_truth(source: Path, names: Sequence[str], classes: Sequence[str]) -> list[int]:
    """Read the labels of the validation images ``names`` from the list that is there."""
    for list_name, read in LISTS.items():
        for place in DEVKIT:
            path = source / place / list_name
            if path.is_file():
                return _read_labels(path, read, names, classes)
    raise StoreError(
        f"{source / VALIDATION}: the images lie in one folder, and no list says of which class "
        f"each is. Put one beside it ({', '.join(LISTS)}), or sort them into class folders."
    )


def _read_labels(
    path: Path,
    read: Callable[[Path, Sequence[str], Sequence[str]], Mapping[str, str]],
    names: Sequence[str],
    classes: Sequence[str],
) -> list[int]:
    number = {name: label for label, name in enumerate(classes)}
    try:
        class_of = read(path, names, classes)
        return [number[class_of[name.partition(".")[0]]] for name in names]
    except (LookupError, ValueError, OSError) as error:
        raise_if_refused(path, error)
        raise StoreError(
            f"{path}: does not give the class of each image in {VALIDATION} "
            f"({type(error).__name__}: {error}). Get that list again."
        ) from error


def _read_kaggle(path: Path, names: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    with open(path, newline="", encoding="utf-8") as file:
        lines = islice(csv.reader(file), 1, None)
        return {line[0]: line[1].split()[0] for line in lines if line}


def _read_caffe(path: Path, names: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    pairs = (line.split() for line in _read_lines(path))
    return {name.partition(".")[0]: classes[_parse_index(label)] for name, label in pairs}


def _read_tensorflow(path: Path, names: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    stems = (name.partition(".")[0] for name in names)
    return dict(zip(stems, _read_lines(path), strict=True))


def _read_devkit(path: Path, names: Sequence[str], classes: Sequence[str]) -> dict[str, str]:
    from scipy.io import loadmat

    synsets = loadmat(path.with_name("meta.mat"), squeeze_me=True)["synsets"]
    folder_of = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
    stems = (name.partition(".")[0] for name in names)
    return {stem: folder_of[int(line)] for stem, line in zip(stems, _read_lines(path), strict=True)}


LISTS = {
    "LOC_val_solution.csv": _read_kaggle,
    "val.txt": _read_caffe,
    "imagenet_2012_validation_synset_labels.txt": _read_tensorflow,
    "ILSVRC2012_validation_ground_truth.txt": _read_devkit,
}


def _parse_index(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"label {number}")
    return number


def _read_lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


# Folders ------------------------------------------------------------------------------------------


def _list_folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and _is_visible(entry))


def _list_images(folder: Path) -> Files:
    with os.scandir(folder) as entries:
        found = [
            (entry.name, entry.stat().st_size)
            for entry in entries
            if entry.name.lower().endswith(SUFFIXES) and _is_visible(entry)
        ]
    return dict(sorted(found))


def _is_visible(entry: "os.DirEntry[str]") -> bool:
    return not entry.name.startswith(".")


def _format_names(names: Sequence[str], many: str, one: str) -> str:
    """Format names for a message, such as ``3 files (a, b, c) are``."""
    shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
    noun, _, verb = (many if len(names) > 1 else one).partition(" ")
    return f"{len(names):,} {noun} ({shown}) {verb}"
