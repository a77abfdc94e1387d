"""A small set of image files for tests, in the layout of ImageNet."""

import io
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from cepheid.reference.data import imagenet
from cepheid.reference.data.image_files import wallpapers
from cepheid.reference.data.image_files.drawn import Picture
from cepheid.reference.data.imagenet import ImageNetParameters

CLASSES = ("n01", "n02", "n03")
TRAIN, EVALUATION = 12, 6
REAL = ImageNetParameters("ILSVRC2012", len(CLASSES), TRAIN, EVALUATION)
DRAWN = ImageNetParameters("shapes", len(CLASSES), TRAIN, EVALUATION)


@cache
def jpeg(number: int, mode: str = "RGB", **options: Any) -> bytes:
    """Picture ``number`` of a class, as a JPEG file of another mode or with other options."""
    image = Image.fromarray(wallpapers.draw_picture(7, Picture(number % len(CLASSES), number)))
    file = io.BytesIO()
    image.convert(mode).save(file, options.pop("format", "JPEG"), **options)
    return file.getvalue()


def write_set(root: Path) -> Path:
    """``train`` and ``val`` in class folders, below ``root/ILSVRC2012``."""
    source = root / imagenet.REAL
    for part, first, count in (("train", 0, TRAIN), ("val", TRAIN, EVALUATION)):
        for number in range(first, first + count):
            path = source / part / CLASSES[number % len(CLASSES)] / f"{part}_{number:03}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number))
    return source


def flatten(source: Path) -> list[tuple[str, str]]:
    """Move all validation images into one folder; returns names and classes, in order of names."""
    moved = sorted((path.name, path.parent.name, path) for path in source.glob("val/*/*"))
    for name, folder, path in moved:
        path.rename(source / "val" / name)
        if not any((source / "val" / folder).iterdir()):
            (source / "val" / folder).rmdir()
    return [(name, folder) for name, folder, _ in moved]


def pack(root: Path, parameters: ImageNetParameters = REAL, **options: Any) -> Path:
    """Prepare below ``root`` what lies there; returns the prepared folder."""
    folder = root / "packed"
    imagenet.prepare(folder, parameters, **{"processes": 1, **options})
    return folder
