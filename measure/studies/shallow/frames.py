"""Baselines of frames that follow: known frames, futures of other clips, a linear prediction.

Frames are (n, channels, time, y, x) in [0, 1].
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cepheid.benchmarks.video_prediction import quality
from cepheid.benchmarks.video_prediction.broken import sharpen
from cepheid.measure.studies.shallow.trial import Metrics, Trial

SHARES = (0.0, 1.0, 0.5)  # of the last change
WEIGHTS = ((1, 1, 1, 1, 1, 1), (0, 0, 0, 0, 1, 2))  # of known frames, when likeness is measured
MASKS = (0.0, 1.0, 2.0, 3.0, 4.0)  # unsharp
PENALTIES = (1.0, 100.0)  # of the ridge regression


class Clips(NamedTuple):
    """Known frames, and those that follow."""

    past: Tensor
    future: Tensor


def read(trial: Trial, rows: slice) -> Clips:
    """Return the clips of some rows, in float64."""
    frames = torch.from_numpy(np.array(trial.data.frames[rows])).permute(0, 4, 1, 2, 3)
    times = [int(trial.model["inputs"]), int(trial.model["outputs"])]
    return Clips(*(frames.double() / 255).split(times, dim=2))


def judge(clips: Clips, predicted: Tensor) -> Metrics:
    """Return the metrics of predicted frames (n, channels, time, y, x) in [0, 1]."""
    past, future = clips
    return quality.summarize(quality.measure(past, predicted.clamp(0, 1), future), len(future))


def run_copies(trial: Trial) -> Iterator[Metrics]:
    """Show the last known frame again, go on as the last two did, or half of that."""
    clips = read(trial, trial.evaluation)
    for share in SHARES:
        yield judge(clips, go_on(clips.past, clips.future.shape[2], share))


def go_on(past: Tensor, count: int, share: float) -> Tensor:
    """Return ``count`` frames after (n, c, time, y, x), with a share of its last change."""
    steps = share * torch.arange(1, count + 1).view(1, 1, -1, 1, 1)
    return past[:, :, -1:] + steps * (past[:, :, -1:] - past[:, :, -2:-1])


def run_retrieval(trial: Trial) -> Iterator[Metrics]:
    """Show what followed the most similar training clip, or how it changed."""
    known, clips = (read(trial, rows) for rows in (trial.train, trial.evaluation))
    for weights in WEIGHTS:
        scale = torch.tensor(weights[-known.past.shape[2] :]).view(1, 1, -1, 1, 1)
        mine, others = ((part.past * scale).flatten(1).float() for part in (clips, known))
        nearest = torch.cdist(mine, others).argmin(1)
        yield judge(clips, known.future[nearest])
        change = known.future[nearest] - known.past[nearest][:, :, -1:]
        yield judge(clips, clips.past[:, :, -1:] + change)


def run_linear(trial: Trial) -> Iterator[Metrics]:
    """Predict each pixel linearly from all known ones, then sharpen what is blurred."""
    known, clips = (read(trial, rows) for rows in (trial.train, trial.evaluation))
    mean, mean_after = known.past.mean(0), known.future.mean(0)
    inputs, outputs = (known.past - mean).flatten(1), (known.future - mean_after).flatten(1)
    squares, products = inputs.T @ inputs, inputs.T @ outputs
    for penalty in PENALTIES:
        weights = torch.linalg.solve(squares + penalty * torch.eye(len(squares)), products)
        predicted = (clips.past - mean).flatten(1) @ weights
        frames = predicted.view(clips.future.shape) + mean_after
        for mask in MASKS:
            yield judge(clips, sharpen(frames, mask))
