"""KTH actions (Schuldt et al. 2004) as they are distributed: grey videos of 160 x 120 pixels.

Each archive, extracted, has the videos of an action: ``walking/person01_walking_d1_uncomp.avi``.
Persons 1 to 16 are for training, 17 to 25 for evaluation; the published code meant that too, but a
loop in it left only person 25. Clips are consecutive frames of one video.
"""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.reference.data.store import StoreError
from cepheid.reference.data.videos.windows import (
    VIDEO_PIXELS_MAX,
    Window,
    choose,
    cut,
    refuse_many_pixels,
)

if TYPE_CHECKING:
    from PIL.Image import Image

PACKAGES = ("av", "Pillow")
ACTIONS = ("boxing", "handclapping", "handwaving", "jogging", "running", "walking")
LAST_TRAINING_PERSON = 16
_NAME = re.compile(r"person(\d\d)_([a-z]+)_d[1-4]_uncomp\.avi")


def list_windows(root: Path, frames: int, counts: tuple[int, int]) -> tuple[Sequence[Window], str]:
    """Return the windows to train and to evaluate, and a digest of all videos.

    Raises StoreError where an action has no videos, or where there are too few clips.
    """
    digest = hashlib.sha256()
    training: list[Window] = []
    evaluation: list[Window] = []
    for action in ACTIONS:
        videos = sorted(
            each for each in (root / action).glob("*.avi") if _NAME.fullmatch(each.name)
        )
        if not videos:
            raise StoreError(
                f"{root / action}: no videos such as person01_{action}_d1_uncomp.avi; fix: extract "
                f"{action}.zip there"
            )
        for video in videos:
            with open(video, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
            is_training = int(video.name[6:8]) <= LAST_TRAINING_PERSON
            part = training if is_training else evaluation
            part += cut(video, len(_decode(video)), frames)
    train, evaluate = counts
    return [
        *choose(training, train, f"{root}, persons 1 to {LAST_TRAINING_PERSON}"),
        *choose(evaluation, evaluate, f"{root}, the other persons"),
    ], digest.hexdigest()


def read_frames(window: Window) -> Sequence["Image"]:
    """Return the frames of a window, grey. Raises StoreError where the video is damaged."""
    return _decode(window.video)[window.first : window.first + window.count]


@lru_cache(maxsize=1)  # windows of a video follow each other
def _decode(path: Path) -> Sequence["Image"]:
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
