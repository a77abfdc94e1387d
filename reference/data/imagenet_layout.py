"""Image files in the folders in which ImageNet is distributed.

``train/<class>/<name>.JPEG``, and the same under ``val``, or all of ``val`` in one folder with a
list of the true classes beside it.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from reference.data import shapes
from reference.data.shapes import Picture
from reference.data.store import StoreError

TRAIN, VALIDATION = "train", "val"
SUFFIXES = (".jpeg", ".jpg")


@dataclass(frozen=True)
class Listing:
    """All files of a set, training first: names relative to its folder, labels, sizes."""

    classes: tuple[str, ...]
    names: tuple[str, ...]
    labels: np.ndarray
    sizes_bytes: np.ndarray

    @cached_property
    def encoded(self) -> tuple[bytes, ...]:
        """The names in UTF-8."""
        return tuple(name.encode() for name in self.names)

    @property
    def digest(self) -> str:
        """SHA-256 of names, labels and sizes."""
        sha = hashlib.sha256("\n".join(self.names).encode())
        sha.update(self.labels.astype("<i8").tobytes())
        sha.update(self.sizes_bytes.astype("<i8").tobytes())
        return sha.hexdigest()


def listed(source: Path, classes: int, train: int, validation: int) -> Listing:
    """All files below ``source``; raises StoreError if they are not as many as expected."""
    names: list[str] = []
    labels: list[int] = []
    sizes: list[int] = []
    class_names = tuple(sorted(entry.name for entry in os.scandir(source / TRAIN)))
    for part in (TRAIN, VALIDATION):
        for label, name in enumerate(class_names):
            folder = source / part / name
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                names.append(f"{part}/{name}/{entry.name}")
                labels.append(label)
                sizes.append(entry.stat().st_size)
    return Listing(class_names, tuple(names), np.array(labels), np.array(sizes))


def draw_shapes(
    folder: Path, seed: int, classes: Sequence[str], train: int, validation: int
) -> None:
    """Draw the set of ``shapes`` into ``folder``, unless it is there."""
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.partial")
    for part, first, count in ((TRAIN, 0, train), (VALIDATION, train, validation)):
        for row in range(first, first + count):
            label, number = row % len(classes), row // len(classes)
            path = unfinished / part / classes[label] / f"{classes[label]}_{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(shapes.jpeg(seed, Picture(label, number)))
    unfinished.rename(folder)
