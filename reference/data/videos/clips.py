"""Clips of a few frames: drawn, or cut from videos in the layout in which they are distributed.

Stored arrays
    ``frames``  uint8 (rows, time, y, x, channels)

    Rows [0, train) are for training, the next ones for evaluation. What is in row i of a drawn
    dataset is a function of the seed and i only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from cepheid.reference.data import dataset, preparation, store
from cepheid.reference.data.store import Manifest, OnProgress, StoreError, explain_unreadable
from cepheid.reference.data.videos import digits, kitti, kth, sky
from cepheid.reference.data.videos.windows import Source, read_windows

GENERATOR = "videos"
GENERATOR_VERSION = 1  # to be raised by every change that draws or reads other pixels
CHUNK_ROWS = 100
FEWEST_PIXELS = 16
Kind = Literal["sky", "moving_digits", "KITTI", "KTH"]
_Draw = Callable[[np.random.Generator, int, int], np.ndarray]
DRAWN: Mapping[str, tuple[_Draw, Callable[[], dict[str, object]]]] = MappingProxyType(
    {
        "sky": (sky.draw_clip, sky.describe),
        "moving_digits": (digits.draw_clip, digits.describe),
    }
)
"""What draws a clip of frames and pixels, and what says how."""
READ: Mapping[str, Source] = MappingProxyType(
    {
        "KITTI": Source(kitti.list_windows, kitti.read_frames, kitti.PACKAGES),
        "KTH": Source(kth.list_windows, kth.read_frames, kth.PACKAGES),
    }
)
CHANNELS: Mapping[str, int] = MappingProxyType({"sky": 1, "moving_digits": 1, "KITTI": 3, "KTH": 1})


@dataclass(frozen=True)
class VideoParameters(dataset.Parameters):
    """The ``data`` section of a definition. Raises StoreError for values that make no sense."""

    generator = GENERATOR

    train_samples: int
    evaluation_samples: int
    source: Kind = "sky"
    seed: int = 20260101  # of what is drawn
    pixels: int = FEWEST_PIXELS
    frames: int = 12

    def __post_init__(self) -> None:
        if min(self.train_samples, self.evaluation_samples) < 1:
            raise StoreError("data.train_samples or evaluation_samples is below 1")
        if self.source not in get_args(Kind):
            known = ", ".join(get_args(Kind))
            raise StoreError(f"data.source is {self.source!r}, expected one of {known}")
        if self.pixels < FEWEST_PIXELS or self.frames < 2:
            raise StoreError(
                f"data.pixels is {self.pixels} and frames {self.frames}, expected {FEWEST_PIXELS} "
                "or more pixels and at least 2 frames"
            )

    @property
    def channels(self) -> int:
        """Return the colours of a pixel."""
        return CHANNELS[self.source]

    @property
    def title(self) -> str:
        """Return what a reader sees first in the name of the folder, with the source."""
        return f"{GENERATOR}-{self.source}-{self.rows}"

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the parameters for the manifest."""
        drawn: dict[str, Any] = {}
        if self.source in DRAWN:
            drawn = {"seed": self.seed, "drawing": DRAWN[self.source][1]()}
        return {
            "generator_version": GENERATOR_VERSION,
            "source": self.source,
            "train_samples": self.train_samples,
            "evaluation_samples": self.evaluation_samples,
            "pixels": self.pixels,
            "frames": self.frames,
            **drawn,
        }


@dataclass(frozen=True)
class Clips:
    """A prepared dataset: frames as the module's docstring says."""

    frames: np.ndarray
    manifest: Manifest


parameters_of = VideoParameters.parse


def find_distributed_files(folder: Path, parameters: VideoParameters) -> Path | None:
    """Return the folder where a user puts the distributed files, if there are any."""
    return folder.with_name(parameters.source) if parameters.source in READ else None


def prepare(
    folder: Path,
    parameters: VideoParameters,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Prepare the dataset in ``folder``; continue an interrupted one, or return if it is finished.

    Raises StoreError as ``preparation.prepare`` does, and where distributed videos are missing, too
    few or damaged.
    """
    if folder.exists():
        return dataset.read_existing(GENERATOR, folder, parameters.as_json)
    facts = dict(parameters.as_json)
    draw: Callable[[range], Mapping[str, np.ndarray]] = partial(draw_clips, parameters)
    packages: tuple[str, ...] = ()
    if source := READ.get(parameters.source):
        root = folder.with_name(parameters.source)
        counts = parameters.train_samples, parameters.evaluation_samples
        with explain_unreadable():
            windows, facts["videos_sha256"] = source.list_windows(root, parameters.frames, counts)
        draw = partial(read_windows, source.read_frames, windows, parameters.pixels)
        packages = source.packages
    side, channels = parameters.pixels, parameters.channels
    return preparation.prepare(
        folder,
        GENERATOR,
        facts,
        {"frames": (np.dtype(np.uint8), (parameters.frames, side, side, channels))},
        parameters.rows,
        draw,
        processes,
        on_progress,
        CHUNK_ROWS,
        packages=packages,
    )


def load(folder: Path) -> Clips:
    """Map a prepared dataset. Raises StoreError if it is missing, damaged or something else."""
    manifest = dataset.read_manifest(GENERATOR, folder)
    return Clips(store.open_arrays(folder)["frames"], manifest)


def draw_clips(parameters: VideoParameters, indices: range) -> dict[str, np.ndarray]:
    """Draw clips ``indices``: frames (rows, time, y, x, channels)."""
    draw, _ = DRAWN[parameters.source]
    generators = (
        np.random.default_rng(np.random.SeedSequence([parameters.seed, index])) for index in indices
    )
    clips = [draw(random, parameters.frames, parameters.pixels) for random in generators]
    return {"frames": np.stack(clips)}
