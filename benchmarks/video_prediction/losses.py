"""The losses of video_prediction: those of critic and generator, and the error that is logged.

Frames are uint8 (n, time, y, x, channels) as read, and (n, channels, time, y, x) for networks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cepheid.benchmarks.video_prediction.growth import Stage, Videos
from cepheid.benchmarks.video_prediction.model import compute_penalty, mix, show
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.torch.devices.values import to_device
from cepheid.reference.torch.workload import Network

CRITIC, GENERATOR = "critic", "generator"
BOTH = (CRITIC, GENERATOR)


@dataclass
class Pass:
    """What the next pass of the networks computes; the module has it as ``next``.

    It follows ``samples`` of all ranks, and ``offset`` are those of the ranks before this one in
    its step. ``trained`` has the networks that get gradients: one at a time in a step, else both.
    ``predicted`` are frames of the critic's update for the generator's.
    """

    samples: int = 0
    offset: int = 0
    trained: Sequence[str] = BOTH
    predicted: Tensor | None = None


def scale(shape: Videos, frames: Tensor, stage: Stage) -> Tensor:
    """Return frames as networks of a stage see them, in [-1, 1]: (n, channels, time, y, x)."""
    scaled = frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    return show(scaled, shape.find_pixels(stage), stage)


def generate(network: Network, past: Tensor, stage: Stage) -> Tensor:
    """Return the frames that follow ``past``, in [-1, 1], both (n, channels, time, y, x).

    An update of the critic leaves the generator as it is, so that of the generator takes the
    same frames.
    """
    now: Pass = network.module.next
    kept, now.predicted = now.predicted, None
    if kept is not None and now.trained == (GENERATOR,):
        return kept
    with network.autocast():
        frames: Tensor = network.module(past, stage).float()
    if now.trained == (CRITIC,):
        now.predicted = frames
    return frames


def judge(network: Network, stage: Stage, clips: Tensor) -> Tensor:
    """Return the critic's scores of clips (n, channels, time, y, x), (n,), in float32."""
    with network.autocast():
        scores: Tensor = network.module.critic(clips, stage)
    return scores.float()


def judge_both(network: Network, stage: Stage, real: Tensor, false: Tensor) -> Sequence[Tensor]:
    """Return the critic's scores of real and of false clips, (n,) each, in one pass."""
    return judge(network, stage, torch.cat((real, false))).chunk(2)


def score_for_generator(network: Network, stage: Stage, clips: Tensor) -> Tensor:
    """Return the critic's scores (n,) of clips; its weights get no gradients from them."""
    critic = network.module.critic.requires_grad_(False)
    scores = judge(network, stage, clips)
    critic.requires_grad_(True)
    return scores


@dataclass(frozen=True)
class Ways:
    """How losses are computed; a variant of the benchmark has others."""

    generate: Callable[[Network, Tensor, Stage], Tensor] = generate
    judge_both: Callable[[Network, Stage, Tensor, Tensor], Sequence[Tensor]] = judge_both
    score_for_generator: Callable[[Network, Stage, Tensor], Tensor] | None = score_for_generator


def compute_loss(
    shape: Videos, network: Network, past: Tensor, future: Tensor, ways: Ways = Ways()
) -> Tensor:
    """Return the mean error of a pixel, a scalar, with the gradients of the losses of ``trained``.

    Losses of adversaries need not fall while both improve; the error of a pixel does.
    """
    now: Pass = network.module.next
    stage = shape.find_stage(now.samples)
    past, future = scale(shape, past, stage), scale(shape, future, stage)
    predicted = ways.generate(network, past, stage)
    losses = []
    if CRITIC in now.trained:
        real, false = (torch.cat((past, frames), dim=2) for frames in (future, predicted.detach()))
        losses.append(compute_critic_loss(shape, network, real, false, ways))
    error = (predicted - future).abs().mean()
    if GENERATOR in now.trained:
        loss = shape.values.gan_pixel_weight * error
        if ways.score_for_generator:
            clips = torch.cat((past, predicted), dim=2)
            loss = loss - ways.score_for_generator(network, stage, clips).mean()
        losses.append(loss)
    total = torch.stack(losses).sum()
    return total + (error / 2 - total).detach()


def compute_critic_loss(
    shape: Videos, network: Network, real: Tensor, false: Tensor, ways: Ways
) -> Tensor:
    """Return the critic's loss, a scalar: WGAN-GP (Gulrajani et al. 2017) with the drift term.

    Clips are (n, channels, time, y, x).
    """
    values, now = shape.values, network.module.next
    stage = shape.find_stage(now.samples)
    of_real, of_false = ways.judge_both(network, stage, real, false)
    drift = values.gan_drift_weight * of_real.square().mean()
    loss = of_false.mean() - of_real.mean() + drift
    interval = values.gan_penalty_interval_steps
    if now.samples // shape.config.global_batch_size % interval == 0:
        shares = to_device(draw_shares(shape, now, len(real)), real.device)
        penalty = compute_penalty(partial(judge, network, stage), mix(real, false, shares))
        loss = loss + interval * values.gan_penalty_weight * penalty
    return loss


def draw_shares(shape: Videos, now: Pass, count: int) -> Tensor:
    """Return a number in [0, 1) for each of ``count`` samples of this rank, (count,)."""
    random = make_generator(shape.config.seed, "mixtures", now.samples)
    return torch.from_numpy(random.random(now.offset + count, np.float32)[now.offset :])
