"""KITTI tracking (Geiger et al. 2012) as it is distributed: colour frames of the left camera.

``data_tracking_image_2.zip``, extracted, has a folder of PNG files for each drive:
``training/image_02/0000/000000.png`` and ``testing/image_02/…``. Clips are consecutive frames of
one drive; those to evaluate come from the drives to test, of which no labels are needed.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.reference.data.store import StoreError
from cepheid.reference.data.videos.windows import (
    FRAME_PIXELS_MAX,
    Window,
    choose,
    cut,
    refuse_many_pixels,
)

if TYPE_CHECKING:
    from PIL.Image import Image

PACKAGES = ("Pillow",)
PARTS = ("training", "testing")


def list_windows(root: Path, frames: int, counts: tuple[int, int]) -> tuple[Sequence[Window], str]:
    """Return the windows to train and to evaluate, and a digest of names and sizes of all frames.

    Raises StoreError where drives or frames are missing.
    """
    chosen: list[Window] = []
    digest = hashlib.sha256()
    for part, count in zip(PARTS, counts, strict=True):
        folder = root / part / "image_02"
        drives = sorted(each for each in folder.glob("[0-9][0-9][0-9][0-9]") if each.is_dir())
        found: list[Window] = []
        for drive in drives:
            files = sorted(drive.glob("*.png"))
            _check_numbers(drive, files)
            for file in files:
                place = file.relative_to(root).as_posix()
                digest.update(f"{place} {file.stat().st_size}\n".encode())
            found += cut(drive, len(files), frames)
        chosen += choose(found, count, str(folder))
    return chosen, digest.hexdigest()


def _check_numbers(drive: Path, files: Sequence[Path]) -> None:
    for number, file in enumerate(files):
        if file.stem != f"{number:06d}":
            raise StoreError(
                f"{drive}: frame {number:06d}.png is missing, got {file.name}; fix: extract "
                "data_tracking_image_2.zip again"
            )


def read_frames(window: Window) -> Sequence["Image"]:
    """Return the frames of a window, RGB. Raises StoreError where a file is damaged."""
    from PIL import Image

    frames = []
    for number in range(window.first, window.first + window.count):
        path = window.video / f"{number:06d}.png"
        try:
            with Image.open(path, formats=["PNG"]) as image:
                refuse_many_pixels(path, image.width * image.height, FRAME_PIXELS_MAX)
                frames.append(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise StoreError(
                f"{path}: not a whole PNG file ({error}); fix: extract it again"
            ) from error
    return frames
