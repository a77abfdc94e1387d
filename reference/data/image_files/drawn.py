"""Files of drawn pictures in the folder layout of ImageNet: data for mini scale."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from cepheid.reference.data.disk import explain_disk_errors
from cepheid.reference.data.store import OnProgress, split_rows
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_path

JPEG_QUALITY = 85
PIECE = 100  # files that a process draws at a time


@dataclass(frozen=True)
class Picture:
    """One picture of a set: its class, and which of that class."""

    label: int
    number: int


def draw_files(
    folder: Path,
    draw_picture: Callable[[Picture], np.ndarray],
    classes: Sequence[str],
    samples: dict[str, int],
    processes: int | None,
    on_progress: OnProgress,
) -> None:
    """Draw the pictures of all parts into ``folder``; existing files are kept.

    ``draw_picture`` returns a picture as uint8 (height, width, 3).
    Each part has ``samples[part]`` pictures ``<part>/<class>/<class>_<number>.JPEG``, the classes
    in turn. ``on_progress`` is called with the files written and the total. Raises StoreError if
    they cannot be written or a process is killed.
    """
    parts = [part for part, count in samples.items() for _ in range(count)]
    with explain_disk_errors(folder):
        for part in samples:
            for name in classes:
                (folder / part / name).mkdir(parents=True, exist_ok=True)
        draw = partial(_draw_rows, folder, draw_picture, classes, parts)
        done = 0
        pieces = split_rows(len(parts), PIECE)
        for rows, _ in map_in_processes(draw, pieces, processes, folder):
            done += len(rows)
            on_progress(done, len(parts))


def _draw_rows(
    folder: Path,
    draw_picture: Callable[[Picture], np.ndarray],
    classes: Sequence[str],
    parts: Sequence[str],
    rows: range,
) -> None:
    for row in rows:
        label, number = row % len(classes), row // len(classes)
        path = folder / parts[row] / classes[label] / f"{classes[label]}_{number:05}.JPEG"
        if not path.exists():
            with atomic_path(path, sync=False) as temporary:
                temporary.write_bytes(encode_picture(draw_picture(Picture(label, number))))


def encode_picture(pixels: np.ndarray) -> bytes:
    """Return a picture, uint8 (height, width, 3), as a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=2)
    return file.getvalue()
