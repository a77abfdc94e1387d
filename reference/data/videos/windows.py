"""Windows of consecutive frames in distributed videos, one after the other without overlap."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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

    ``list_windows`` takes the folder, the frames of a window and the numbers of windows to train
    and to evaluate. It returns them, in this order, and a digest of what was found; it raises
    StoreError where there are fewer, and for another layout. ``read_frames`` returns the frames of
    a window, and raises StoreError where they are damaged.
    """

    list_windows: Callable[[Path, int, tuple[int, int]], tuple[Sequence[Window], str]]
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


def choose(found: Sequence[Window], count: int, where: str) -> Sequence[Window]:
    """Return the first ``count`` windows. Raises StoreError if there are fewer."""
    if len(found) < count:
        raise StoreError(
            f"{where}: {len(found):,} clips, expected {count:,}; fix: extract all of the "
            "distributed files there"
        )
    return found[:count]


def read_windows(
    read: ReadFrames,
    windows: Sequence[Window],
    pixels: int,
    rows: range,
) -> Mapping[str, np.ndarray]:
    """Return the clips of ``rows`` as squares: frames (rows, time, y, x, channels)."""
    clips = [[_resize(frame, pixels) for frame in read(windows[row])] for row in rows]
    stacked = np.stack([np.stack(clip) for clip in clips])
    return {"frames": stacked if stacked.ndim == 5 else stacked[..., None]}


def _resize(frame: "Image", pixels: int) -> np.ndarray:
    """Return the frame, bicubic as the publication has it, uint8 (y, x) or (y, x, 3)."""
    from PIL import Image

    return np.asarray(frame.resize((pixels, pixels), Image.Resampling.BICUBIC))
