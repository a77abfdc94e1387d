"""The networks of video_prediction, written from rules/from_scratch.md alone."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.rules.from_scratch.layers import make

NEAR, HALF = (3, 3, 3), (1, 2, 2)
Stage = tuple[int, float]  # number and alpha


class Layer(nn.Module):
    """A 3-D convolution, or a transposed one, whose weights are scaled when they are used."""

    def __init__(self, a: int, b: int, kernel: Sequence[int], is_transposed: bool = False) -> None:
        super().__init__()
        channels = (a, b) if is_transposed else (b, a)
        self.weight, self.bias = make(*channels, *kernel, deviation=1.0), make(b)
        self.stride = HALF if kernel == HALF else (1, 1, 1)
        self.padding, self.is_transposed = int(kernel == NEAR), is_transposed

    def forward(self, x: Tensor) -> Tensor:
        convolve: Any = F.conv_transpose3d if self.is_transposed else F.conv3d
        weight = self.weight / self.weight[0].numel() ** 0.5
        result: Tensor = convolve(x, weight, self.bias, self.stride, self.padding)
        return result


def rectify(x: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.2)


def normalise(x: Tensor) -> Tensor:
    """Return what follows each layer of the generator but the last."""
    x = rectify(x)
    return x / ((x**2).mean(1, keepdim=True) + 1e-8).sqrt()


class Encoder(nn.Module):
    """Frames of a stage to maps of the first one; ``after`` follows each layer."""

    def __init__(self, frames: int, widths: list[int], after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.after, pairs = after, list(pairwise(widths))
        self.frames = nn.ModuleList(Layer(frames, width, (1, 1, 1)) for width in widths)
        self.near = nn.ModuleList(Layer(b, b, NEAR) for _, b in pairs)
        self.halve = nn.ModuleList(Layer(b, a, HALF) for a, b in pairs)
        self.old = nn.ModuleList(Layer(a, a, HALF) for a, _ in pairs)

    def forward(self, x: Tensor, stage: Stage) -> Tensor:
        (number, alpha), after = stage, self.after
        maps = after(self.frames[number](x))
        for place in range(number - 1, -1, -1):
            maps = after(self.halve[place](after(self.near[place](maps))))
            if place == number - 1 and alpha < 1:
                old = after(self.old[place](after(self.frames[place](x))))
                maps = (1 - alpha) * old + alpha * maps
        return maps


class Generator(nn.Module):
    def __init__(self, channels: int, widths: list[int], known: int, unknown: int) -> None:
        super().__init__()
        self.encoder, w = Encoder(channels, widths, normalise), widths[0]
        self.middle = nn.ModuleList([Layer(w, w, NEAR), Layer(w, w, (known, 1, 1))])
        self.middle += [Layer(w, w, (unknown, 1, 1), is_transposed=True), Layer(w, w, NEAR)]
        self.frames = nn.ModuleList(Layer(width, channels, (1, 1, 1)) for width in widths)
        self.up, self.near, self.old = (nn.ModuleList() for _ in range(3))
        for a, b in pairwise(widths):
            self.up.append(Layer(a, b, HALF, is_transposed=True))
            self.near.append(Layer(b, b, NEAR))
            self.old.append(Layer(a, a, HALF, is_transposed=True))

    def forward(self, x: Tensor, stage: Stage) -> Tensor:
        """Return the frames that follow x, (samples, channels, frames, y, x)."""
        number, alpha = stage
        before = maps = self.encoder(x, stage)
        for layer in self.middle:
            maps = normalise(layer(maps))
        for place in range(number):
            before, maps = maps, normalise(self.near[place](normalise(self.up[place](maps))))
        frames: Tensor = self.frames[number](maps)
        if number and alpha < 1:
            old = self.frames[number - 1](normalise(self.old[number - 1](before)))
            frames = (1 - alpha) * old + alpha * frames
        return frames


class Critic(nn.Module):
    def __init__(self, channels: int, widths: list[int], frames: int, pixels: int) -> None:
        super().__init__()
        self.encoder, w = Encoder(channels, widths, rectify), widths[0]
        self.layers = nn.ModuleList([Layer(w + 1, w, NEAR), Layer(w, w, (frames, pixels, pixels))])
        self.score = Layer(w, 1, (1, 1, 1))

    def forward(self, clips: Tensor, stage: Stage, span: int) -> Any:
        maps = self.encoder(clips, stage)
        deviation = (maps.unflatten(0, (-1, span)).var(1, unbiased=False) + 1e-8).sqrt()
        of_sample = deviation.flatten(1).mean(1).repeat_interleave(span)
        more = of_sample.view(-1, 1, 1, 1, 1).expand(-1, -1, *maps.shape[2:])
        maps = torch.cat([maps, more], 1)
        for layer in self.layers:
            maps = rectify(layer(maps))
        return self.score(maps).flatten()


class Networks(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        channels, known, unknown = model["channels"], model["inputs"], model["outputs"]
        self.generator = Generator(channels, model["widths"], known, unknown)
        frames = known + unknown, model["first_pixels"]
        self.critic = Critic(channels, model["critic_widths"], *frames)


def show(frames: Tensor, pixels: int, stage: Stage) -> Tensor:
    """Return frames uint8 (n, time, y, x, channels) as networks of a stage see them."""
    x = frames.permute(0, 4, 1, 2, 3).double() / 127.5 - 1
    step = x.shape[-1] // pixels
    x = x[..., ::step, ::step]
    old = x[..., ::2, ::2].repeat_interleave(2, -1).repeat_interleave(2, -2)
    return (1 - stage[1]) * old + stage[1] * x


def critic_loss(judge: Any, real: Tensor, false: Tensor, values: Any, t: Tensor | None) -> Any:
    """Return the critic's loss; ``t`` are the shares of a step with a penalty."""
    of_real = judge(real)
    loss = judge(false).mean() - of_real.mean()
    loss = loss + values["gan_drift_weight"] * (of_real**2).mean()
    if t is None:
        return loss
    t = t.view(-1, 1, 1, 1, 1)
    mixed = ((1 - t) * real + t * false).requires_grad_()
    (slopes,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
    penalty = ((slopes.flatten(1).norm(dim=1) - 1) ** 2).mean()
    return loss + values["gan_penalty_interval_steps"] * values["gan_penalty_weight"] * penalty
