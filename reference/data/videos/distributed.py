"""Clips of KITTI as it is distributed: windows of consecutive frames without overlap.

KITTI tracking (Geiger et al. 2012): colour frames of the left camera.
``data_tracking_image_2.zip``, extracted, has a folder of PNG files for each drive:
``training/image_02/0000/000000.png`` and ``testing/image_02/…``. Clips are of one drive; those to
evaluate come from the drives to test, of which no labels are needed.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cepheid.reference.data.store import StoreError

if TYPE_CHECKING:
    from PIL.Image import Image

# So that a damaged or hostile file cannot fill the memory: distributed frames have half a million.
FRAME_PIXELS_MAX = 2**24
PARTS = ("training", "testing")


@dataclass(frozen=True)
class Window:
    """``count`` frames of a ``drive``, a folder, from ``first`` on."""

    drive: Path
    first: int
    count: int


def choose(found: Sequence[Window], count: int, where: str, is_subset: bool) -> Sequence[Window]:
    """Return the first ``count`` windows. Raises StoreError if there are fewer."""
    if len(found) < count:
        fix = "give a smaller --limit, or " if is_subset else ""
        raise StoreError(
            f"{where}: {len(found):,} clips, expected {count:,}; fix: {fix}extract all of the "
            "distributed files there"
        )
    return found[:count]


def read_clips(windows: Sequence[Window], pixels: int, rows: range) -> Mapping[str, np.ndarray]:
    """Return the clips of ``rows`` as squares: frames (rows, time, y, x, 3).

    They are resized bicubically, as the publication has it. Raises StoreError where a file is
    damaged.
    """
    from PIL import Image

    side = (pixels, pixels), Image.Resampling.BICUBIC
    clips = [
        np.stack([np.asarray(frame.resize(*side)) for frame in _read_frames(windows[row])])
        for row in rows
    ]
    return {"frames": np.stack(clips)}


def list_windows(
    root: Path, frames: int, counts: tuple[int, int], is_subset: bool
) -> tuple[Sequence[Window], str]:
    """Return the windows to train and to evaluate, and a digest of names and sizes of all frames.

    A drive of a subset ends at its first missing frame. Raises StoreError where drives or frames
    are missing.
    """
    chosen: list[Window] = []
    digest = hashlib.sha256()
    for part, count in zip(PARTS, counts, strict=True):
        folder = root / part / "image_02"
        drives = [each for each in _list(folder, r"\d{4}") if each.is_dir()]
        found: list[Window] = []
        for drive in drives:
            files = _list_frames(drive, is_subset)
            for file in files:
                place = file.relative_to(root).as_posix()
                digest.update(f"{place} {file.stat().st_size}\n".encode())
            ends = range(0, len(files) - frames + 1, frames)  # the last frames may be left over
            found += [Window(drive, first, frames) for first in ends]
        chosen += choose(found, count, str(folder), is_subset)
    return chosen, digest.hexdigest()


def _list_frames(drive: Path, is_subset: bool) -> Sequence[Path]:
    files = _list(drive, r".*\.png")
    for number, file in enumerate(files):
        if file.stem != f"{number:06d}":
            if is_subset:
                return files[:number]
            raise StoreError(
                f"{drive}: frame {number:06d}.png is missing, got {file.name}; fix: extract "
                "data_tracking_image_2.zip again"
            )
    return files


def _list(folder: Path, pattern: str) -> list[Path]:
    """Return what is in a folder, which glob would pass over where it cannot be read."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if re.fullmatch(pattern, path.name))


def _read_frames(window: Window) -> Sequence["Image"]:
    """Return the frames of a window, RGB."""
    from PIL import Image

    frames = []
    for number in range(window.first, window.first + window.count):
        path = window.drive / f"{number:06d}.png"
        try:
            with Image.open(path, formats=["PNG"]) as image:
                if (found := image.width * image.height) > FRAME_PIXELS_MAX:
                    raise StoreError(
                        f"{path}: it has {found:,} pixels, expected at most {FRAME_PIXELS_MAX:,}; "
                        "fix: extract it again"
                    )
                frames.append(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise StoreError(
                f"{path}: not a whole PNG file ({error}); fix: extract it again"
            ) from error
    return frames
