"""Short videos: drawn, or cut from those of KITTI as they are distributed.

Stored arrays
    ``frames``  uint8 (rows, time, y, x, channels)

    Rows [0, train) are for training, the next ones for evaluation. What is in row i of a drawn
    dataset is a function of the seed and i only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from cepheid.reference.data import dataset
from cepheid.reference.data.columns import Fixed
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import Manifest, StoreError, explain_unreadable
from cepheid.reference.data.videos import drawn
from cepheid.reference.data.videos.distributed import list_windows, read_clips

FEWEST_PIXELS = 16
CHUNK_ROWS = 100
SKY, KITTI = "sky", "KITTI"
CHANNELS: Mapping[str, int] = MappingProxyType({SKY: 1, KITTI: 3})


@dataclass(frozen=True)
class VideoParameters(dataset.Parameters):
    """The ``data`` section of a definition."""

    generator = "videos"
    recorded = ("source", "train_samples", "evaluation_samples", "pixels", "frames")
    sources = (SKY, KITTI)
    distributed = (KITTI,)
    is_named_by_source = True

    train_samples: int
    evaluation_samples: int
    source: str = SKY
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
        return {"seed": self.seed, "drawing": drawn.describe_sky()} if self.source == SKY else {}


@dataclass(frozen=True)
class Clips:
    """A prepared dataset: frames as the module's docstring says."""

    frames: np.ndarray
    manifest: Manifest


def draw_clips(parameters: VideoParameters, indices: range) -> dict[str, np.ndarray]:
    """Draw clips ``indices``: frames (rows, time, y, x, channels)."""
    generators = (
        np.random.default_rng(np.random.SeedSequence([parameters.seed, index])) for index in indices
    )
    clips = [drawn.draw_sky(random, parameters.frames, parameters.pixels) for random in generators]
    return {"frames": np.stack(clips)}


def _plan(parameters: VideoParameters, work: Work) -> Contents:
    """Raise StoreError where distributed videos are missing, too few or damaged."""
    side, channels = parameters.pixels, parameters.channels
    columns = {"frames": Fixed(np.dtype(np.uint8), (parameters.frames, side, side, channels))}
    if parameters.source == SKY:
        return Contents(columns, partial(draw_clips, parameters), chunk_rows=CHUNK_ROWS)
    counts = parameters.train_samples, parameters.evaluation_samples
    with explain_unreadable():
        root = work.folder.with_name(KITTI)
        windows, digest = list_windows(root, parameters.frames, counts, parameters.is_subset)
    read = partial(read_clips, windows, parameters.pixels)
    return Contents(columns, read, {"videos_sha256": digest}, ("Pillow",), CHUNK_ROWS)


def _open(opened: Opened) -> Clips:
    return Clips(opened.arrays["frames"], opened.manifest)


DATASET = dataset.Dataset(VideoParameters, _plan, _open)
load, parameters_of, prepare = DATASET.load, DATASET.parse, DATASET.prepare
