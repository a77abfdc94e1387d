"""Short videos: drawn, or cut from videos in the layout in which they are distributed.

Stored arrays
    ``frames``  uint8 (rows, time, y, x, channels)

    Rows [0, train) are for training, the next ones for evaluation. What is in row i of a drawn
    dataset is a function of the seed and i only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.columns import Fixed
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import Manifest, StoreError, explain_unreadable
from cepheid.reference.data.videos import drawn
from cepheid.reference.data.videos.distributed import SOURCES, read_windows

FEWEST_PIXELS = 16
CHUNK_ROWS = 100
Kind = Literal["sky", "moving_digits", "KITTI", "KTH"]
_Draw = Callable[[np.random.Generator, int, int], np.ndarray]
DRAWN: Mapping[str, tuple[_Draw, Callable[[], dict[str, object]]]] = MappingProxyType(
    {
        "sky": (drawn.draw_sky, drawn.describe_sky),
        "moving_digits": (drawn.draw_digits, drawn.describe_digits),
    }
)
"""What draws a clip of frames and pixels, and what says how."""
CHANNELS: Mapping[str, int] = MappingProxyType({"sky": 1, "moving_digits": 1, "KITTI": 3, "KTH": 1})


@dataclass(frozen=True)
class VideoParameters(dataset.Parameters):
    """The ``data`` section of a definition."""

    generator = "videos"
    recorded = ("source", "train_samples", "evaluation_samples", "pixels", "frames")
    sources = get_args(Kind)
    distributed = tuple(SOURCES)
    is_named_by_source = True

    train_samples: int
    evaluation_samples: int
    source: Kind = "sky"
    seed: int = 20260101  # of what is drawn
    pixels: int = FEWEST_PIXELS
    frames: int = 12
    is_subset: bool = False

    def __post_init__(self) -> None:
        self.check_samples()
        self.check_source("one of ", ", ")
        if self.pixels < FEWEST_PIXELS or self.frames < 2:
            raise StoreError(
                f"data.pixels is {self.pixels} and frames {self.frames}, expected {FEWEST_PIXELS} "
                "or more pixels and at least 2 frames"
            )

    @property
    def channels(self) -> int:
        """Return the colours of a pixel."""
        return CHANNELS[self.source]

    def describe(self) -> dict[str, Any]:
        """Return what decides the drawn clips."""
        if self.source not in DRAWN:
            return {}
        return {"seed": self.seed, "drawing": DRAWN[self.source][1]()}


@dataclass(frozen=True)
class Clips:
    """A prepared dataset: frames as the module's docstring says."""

    frames: np.ndarray
    manifest: Manifest


def draw_clips(parameters: VideoParameters, indices: range) -> dict[str, np.ndarray]:
    """Draw clips ``indices``: frames (rows, time, y, x, channels)."""
    draw, _ = DRAWN[parameters.source]
    generators = (
        np.random.default_rng(np.random.SeedSequence([parameters.seed, index])) for index in indices
    )
    clips = [draw(random, parameters.frames, parameters.pixels) for random in generators]
    return {"frames": np.stack(clips)}


def _plan(parameters: VideoParameters, work: Work) -> Contents:
    """Raise StoreError where distributed videos are missing, too few or damaged."""
    side, channels = parameters.pixels, parameters.channels
    columns = {"frames": Fixed(np.dtype(np.uint8), (parameters.frames, side, side, channels))}
    if parameters.source in DRAWN:
        return Contents(columns, partial(draw_clips, parameters), chunk_rows=CHUNK_ROWS)
    source, root = SOURCES[parameters.source], work.folder.with_name(parameters.source)
    counts = parameters.train_samples, parameters.evaluation_samples
    with explain_unreadable():
        windows, digest = source.list_windows(root, parameters.frames, counts, parameters.is_subset)
    read = partial(read_windows, source.read_frames, windows, parameters.pixels)
    return Contents(columns, read, {"videos_sha256": digest}, source.packages, CHUNK_ROWS)


def _open(opened: Opened) -> Clips:
    return Clips(opened.arrays["frames"], opened.manifest)


DATASET = dataset.Dataset(VideoParameters, _plan, _open)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
