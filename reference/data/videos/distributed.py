"""Clips of videos as they are distributed: windows of consecutive frames without overlap.

KITTI tracking (Geiger et al. 2012): colour frames of the left camera.
``data_tracking_image_2.zip``, extracted, has a folder of PNG files for each drive:
``training/image_02/0000/000000.png`` and ``testing/image_02/…``. Clips are of one drive; those to
evaluate come from the drives to test, of which no labels are needed.

KTH actions (Schuldt et al. 2004): grey videos of 160 x 120 pixels. Each archive, extracted, has
the videos of an action: ``walking/person01_walking_d1_uncomp.avi``. Persons 1 to 16 are for
training, 17 to 25 for evaluation; the published code meant that too, but a loop in it left only
person 25. Clips are of one video.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from cepheid.reference.data.store import StoreError

if TYPE_CHECKING:
    from PIL.Image import Image

# So that a damaged or hostile file cannot fill the memory: distributed frames have 0.5 million
# pixels at most, and videos 20 million.
FRAME_PIXELS_MAX, VIDEO_PIXELS_MAX = 2**24, 2**28


@dataclass(frozen=True)
class Window:
    """``count`` frames of a video from ``first`` on; a video is a file or a folder of files."""

    video: Path
    first: int
    count: int


ReadFrames = Callable[[Window], Sequence["Image"]]


@dataclass(frozen=True)
class Source:
    """The layout in which a dataset is distributed.

    ``list_windows`` takes the folder, the frames of a window, the numbers of windows to train and
    to evaluate, and whether they are a subset, for which videos need not be complete. It returns
    them, in this order, and a digest of what was found; it raises StoreError where there are fewer,
    and for another layout. ``read_frames`` returns the frames of a window, and raises StoreError
    where they are damaged.
    """

    list_windows: Callable[[Path, int, tuple[int, int], bool], tuple[Sequence[Window], str]]
    read_frames: ReadFrames
    packages: tuple[str, ...]


def refuse_many_pixels(path: Path, pixels: int, largest: int) -> None:
    """Raise StoreError if a file holds more than the ``largest`` number of pixels."""
    if pixels > largest:
        raise StoreError(
            f"{path}: it has {pixels:,} pixels or more, expected at most {largest:,}; fix: extract "
            "it again"
        )


def cut(video: Path, length: int, frames: int) -> list[Window]:
    """Return the windows of a video of ``length`` frames; the last frames may be left over."""
    return [Window(video, first, frames) for first in range(0, length - frames + 1, frames)]


def choose(found: Sequence[Window], count: int, where: str, is_subset: bool) -> Sequence[Window]:
    """Return the first ``count`` windows. Raises StoreError if there are fewer."""
    if len(found) < count:
        fix = "give a smaller --limit, or " if is_subset else ""
        raise StoreError(
            f"{where}: {len(found):,} clips, expected {count:,}; fix: {fix}extract all of the "
            "distributed files there"
        )
    return found[:count]


def read_windows(
    read: ReadFrames, windows: Sequence[Window], pixels: int, rows: range
) -> Mapping[str, np.ndarray]:
    """Return the clips of ``rows`` as squares: frames (rows, time, y, x, channels)."""
    clips = [[_resize(frame, pixels) for frame in read(windows[row])] for row in rows]
    stacked = np.stack([np.stack(clip) for clip in clips])
    return {"frames": stacked if stacked.ndim == 5 else stacked[..., None]}


def _resize(frame: "Image", pixels: int) -> np.ndarray:
    """Return the frame, bicubic as the publication has it, uint8 (y, x) or (y, x, 3)."""
    from PIL import Image

    return np.asarray(frame.resize((pixels, pixels), Image.Resampling.BICUBIC))


# KITTI --------------------------------------------------------------------------------------------

KITTI_PARTS = ("training", "testing")


def list_kitti_windows(
    root: Path, frames: int, counts: tuple[int, int], is_subset: bool = False
) -> tuple[Sequence[Window], str]:
    """Return the windows to train and to evaluate, and a digest of names and sizes of all frames.

    A drive of a subset ends at its first missing frame. Raises StoreError where drives or frames
    are missing.
    """
    chosen: list[Window] = []
    digest = hashlib.sha256()
    for part, count in zip(KITTI_PARTS, counts, strict=True):
        folder = root / part / "image_02"
        drives = [each for each in _list(folder, r"\d{4}") if each.is_dir()]
        found: list[Window] = []
        for drive in drives:
            files = _list_frames(drive, is_subset)
            for file in files:
                place = file.relative_to(root).as_posix()
                digest.update(f"{place} {file.stat().st_size}\n".encode())
            found += cut(drive, len(files), frames)
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


def read_kitti_frames(window: Window) -> Sequence["Image"]:
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


# KTH ----------------------------------------------------------------------------------------------

KTH_ACTIONS = ("boxing", "handclapping", "handwaving", "jogging", "running", "walking")
LAST_TRAINING_PERSON = 16
_KTH_NAME = re.compile(r"person(\d\d)_([a-z]+)_d[1-4]_uncomp\.avi")


def list_kth_windows(
    root: Path, frames: int, counts: tuple[int, int], is_subset: bool = False
) -> tuple[Sequence[Window], str]:
    """Return the windows to train and to evaluate, and a digest of all videos.

    Raises StoreError where an action has no videos, or where there are too few clips.
    """
    digest = hashlib.sha256()
    training: list[Window] = []
    evaluation: list[Window] = []
    for action in KTH_ACTIONS:
        videos = sorted(
            each for each in (root / action).glob("*.avi") if _KTH_NAME.fullmatch(each.name)
        )
        if not videos and not is_subset:
            raise StoreError(
                f"{root / action}: no videos such as person01_{action}_d1_uncomp.avi; fix: extract "
                f"{action}.zip there"
            )
        for video in videos:
            with open(video, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
            is_training = int(video.name[6:8]) <= LAST_TRAINING_PERSON
            part = training if is_training else evaluation
            part += cut(video, len(_decode_video(video)), frames)
    train, evaluate = counts
    return [
        *choose(training, train, f"{root}, persons 1 to {LAST_TRAINING_PERSON}", is_subset),
        *choose(evaluation, evaluate, f"{root}, the other persons", is_subset),
    ], digest.hexdigest()


def read_kth_frames(window: Window) -> Sequence["Image"]:
    """Return the frames of a window, grey. Raises StoreError where the video is damaged."""
    return _decode_video(window.video)[window.first : window.first + window.count]


@lru_cache(maxsize=1)  # windows of a video follow each other
def _decode_video(path: Path) -> Sequence["Image"]:
    """Return all frames of a video."""
    import av

    frames: list[Image] = []
    pixels = 0
    try:
        with av.open(str(path)) as video:
            for frame in video.decode(video=0):
                pixels += frame.width * frame.height
                refuse_many_pixels(path, pixels, VIDEO_PIXELS_MAX)
                frames.append(frame.to_image().convert("L"))
    except (av.FFmpegError, IndexError) as error:
        raise StoreError(f"{path}: not a whole video ({error}); fix: extract it again") from error
    return frames


SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "KITTI": Source(list_kitti_windows, read_kitti_frames, ("Pillow",)),
        "KTH": Source(list_kth_windows, read_kth_frames, ("av", "Pillow")),
    }
)
