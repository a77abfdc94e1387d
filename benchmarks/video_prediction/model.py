"""FutureGAN: a generator and a critic of 3-D convolutions that grow in space.

Aigner and Koerner 2018, arXiv:1810.01325, after the growing networks of Karras et al. 2017
(arXiv:1710.10196). Maps are (n, channels, time, y, x). Stage 0 sees frames of ``first_pixels``,
each further one doubles the side. While the layers of a stage fade in, the old ones work beside
them at the new resolution, behind a learned layer that halves or doubles the side and is dropped
later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.video_prediction.growth import Stage

SLOPE = 0.2  # of the leaky rectifier
NORM_EPSILON = 1e-8
Activation = Callable[[Tensor], Tensor]


class Sizes(NamedTuple):
    """Times and sizes of the networks, from the definition."""

    first_pixels: int
    channels: int  # of a frame
    inputs: int  # frames
    outputs: int

    @classmethod
    def parse(cls, facts: Mapping[str, Any]) -> "Sizes":
        """Return those of ``facts``."""
        return cls(*(int(facts[name]) for name in cls._fields))


def rectify(maps: Tensor) -> Tensor:
    """Return leaky rectified maps of any shape: the activation of the critic."""
    return functional.leaky_relu(maps, SLOPE)


def rectify_and_normalise(maps: Tensor) -> Tensor:
    """Return leaky rectified maps, (n, channels, …), of mean square 1 at each place.

    This is the activation of the generator.
    """
    maps = rectify(maps)
    return maps * torch.rsqrt(maps.square().mean(dim=1, keepdim=True) + NORM_EPSILON)


def keep(maps: Tensor) -> Tensor:
    """Return maps of any shape as they are: the activation of layers that make frames or scores."""
    return maps


class EqualizedConvolution(nn.Module):
    """A convolution whose weights are drawn from N(0, 1) and scaled by their fan-in when used.

    So Adam changes all layers at one relative rate (Karras et al., section 4.1). Scaling the
    weights is the same as scaling the maps, and there are fewer of them. A convolution of
    ``stride`` over space and time halves or doubles; one of 1 keeps the size.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Sequence[int],
        activation: Activation,
        stride: Sequence[int] = (1, 1, 1),
        padding: int = 0,
        is_transposed: bool = False,
    ) -> None:
        super().__init__()
        channels = (inputs, outputs) if is_transposed else (outputs, inputs)
        self.weight = nn.Parameter(torch.randn(*channels, *kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.scale = float(self.weight[0].numel()) ** -0.5
        self.stride, self.padding, self.is_transposed = tuple(stride), padding, is_transposed
        self.activation = activation

    def forward(self, maps: Tensor) -> Tensor:
        """Return the activated maps (n, outputs, time, y, x) of maps (n, inputs, time, y, x)."""
        convolve = functional.conv_transpose3d if self.is_transposed else functional.conv3d
        weight = self.weight * self.scale
        return self.activation(convolve(maps, weight, self.bias, self.stride, self.padding))


def convolve(inputs: int, outputs: int, activation: Activation) -> EqualizedConvolution:
    """Return a convolution over the neighbours in space and time."""
    return EqualizedConvolution(inputs, outputs, (3, 3, 3), activation, padding=1)


def convolve_pointwise(inputs: int, outputs: int, activation: Activation) -> EqualizedConvolution:
    """Return a convolution of each place by itself: between frames and maps."""
    return EqualizedConvolution(inputs, outputs, (1, 1, 1), activation)


def halve(inputs: int, outputs: int, activation: Activation) -> EqualizedConvolution:
    """Return a convolution that halves the side."""
    return EqualizedConvolution(inputs, outputs, (1, 2, 2), activation, (1, 2, 2))


def double(inputs: int, outputs: int, activation: Activation) -> EqualizedConvolution:
    """Return a transposed convolution that doubles the side."""
    return EqualizedConvolution(
        inputs, outputs, (1, 2, 2), activation, (1, 2, 2), is_transposed=True
    )


class GrowingEncoder(nn.Module):
    """What turns frames of any stage into maps of ``first_pixels``, in generator and critic."""

    def __init__(self, channels: int, widths: Sequence[int], activation: Activation) -> None:
        super().__init__()
        self.from_frames = nn.ModuleList(
            convolve_pointwise(channels, width, activation) for width in widths
        )
        grown = list(zip(widths[1:], widths, strict=False))
        self.stages = nn.ModuleList(
            nn.Sequential(convolve(width, width, activation), halve(width, before, activation))
            for width, before in grown
        )
        self.fading = nn.ModuleList(halve(before, before, activation) for _, before in grown)

    def forward(self, frames: Tensor, stage: Stage) -> Tensor:
        """Return maps (n, width, time, first_pixels, first_pixels) of frames of ``stage``."""
        maps: Tensor = self.from_frames[stage.number](frames)
        # Channels last is twice as fast on CPUs; one channel alone does not tell its layout.
        maps = maps.contiguous(memory_format=torch.channels_last_3d)
        for newest in range(stage.number, 0, -1):
            maps = self.stages[newest - 1](maps)
            if newest == stage.number and stage.is_fading:
                old = self.fading[newest - 1](self.from_frames[newest - 1](frames))
                maps = torch.lerp(old, maps, stage.alpha)
        return maps


class GrowingDecoder(nn.Module):
    """What turns maps of ``first_pixels`` into frames of any stage."""

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        activation = rectify_and_normalise
        self.to_frames = nn.ModuleList(
            convolve_pointwise(width, channels, keep) for width in widths
        )
        grown = list(zip(widths[1:], widths, strict=False))
        self.stages = nn.ModuleList(
            nn.Sequential(double(before, width, activation), convolve(width, width, activation))
            for width, before in grown
        )
        self.fading = nn.ModuleList(double(before, before, activation) for _, before in grown)

    def forward(self, maps: Tensor, stage: Stage) -> Tensor:
        """Return frames (n, channels, time, y, x) of ``stage`` of maps of ``first_pixels``."""
        before = maps
        for newest in range(1, stage.number + 1):
            before, maps = maps, self.stages[newest - 1](maps)
        frames: Tensor = self.to_frames[stage.number](maps)
        if stage.is_fading:
            old = self.to_frames[stage.number - 1](self.fading[stage.number - 1](before))
            frames = torch.lerp(old, frames, stage.alpha)
        return frames


class Generator(nn.Module):
    """The network that predicts: an encoder, a middle that has one moment only, and a decoder."""

    def __init__(self, sizes: Sizes, widths: Sequence[int]) -> None:
        super().__init__()
        width, activation = widths[0], rectify_and_normalise
        self.encoder = GrowingEncoder(sizes.channels, widths, activation)
        self.middle = nn.Sequential(
            convolve(width, width, activation),
            EqualizedConvolution(width, width, (sizes.inputs, 1, 1), activation),
            EqualizedConvolution(
                width, width, (sizes.outputs, 1, 1), activation, is_transposed=True
            ),
            convolve(width, width, activation),
        )
        self.decoder = GrowingDecoder(sizes.channels, widths)

    def forward(self, frames: Tensor, stage: Stage) -> Tensor:
        """Return the frames (n, channels, outputs, y, x) that follow (n, channels, inputs, …)."""
        return self.decoder(self.middle(self.encoder(frames, stage)), stage)


class Critic(nn.Module):
    """The network that judges whole clips: their known frames and those that follow.

    It sees how much the samples of each group of ``span`` differ, so that it notices predictions
    that are all alike (Karras et al., section 3).
    """

    def __init__(self, sizes: Sizes, widths: Sequence[int], span: int) -> None:
        super().__init__()
        width = widths[0]
        self.encoder = GrowingEncoder(sizes.channels, widths, rectify)
        self.near = DeviationConvolution(width, span)
        side, frames = sizes.first_pixels, sizes.inputs + sizes.outputs
        self.whole = WholeConvolution(width, width, (frames, side, side), rectify)
        self.score = convolve_pointwise(width, 1, keep)

    def forward(self, clips: Tensor, stage: Stage) -> Tensor:
        """Return a score for each of clips (n, channels, time, y, x), (n,): high for real ones."""
        maps = self.near(self.encoder(clips, stage))
        return self.score(self.whole(maps)).flatten()


class DeviationConvolution(EqualizedConvolution):
    """A convolution of maps with one more channel: the mean deviation within ``span`` samples.

    That channel has one value for a sample, so it needs no convolution of its own for each: it is
    the value times the convolution of ones.
    """

    def __init__(self, width: int, span: int) -> None:
        super().__init__(width + 1, width, (3, 3, 3), rectify, padding=1)
        self.span = span

    def forward(self, maps: Tensor) -> Tensor:
        """Return the activated maps (n, width, time, y, x) of maps of the same shape."""
        weight = self.weight * self.scale
        of_maps, of_deviation = weight.split([maps.shape[1], 1], dim=1)
        of_ones = functional.conv3d(maps.new_ones(1, 1, *maps.shape[2:]), of_deviation, padding=1)
        deviation = measure_deviation(maps, self.span).to(of_ones.dtype)
        of_maps = of_maps.contiguous(memory_format=torch.channels_last_3d)
        result = functional.conv3d(maps, of_maps, self.bias, padding=1)
        return self.activation(result + deviation.view(-1, 1, 1, 1, 1) * of_ones)


class WholeConvolution(EqualizedConvolution):
    """A convolution as large as its maps, so that each result has one place.

    As a product of matrices its second derivatives take a quarter of the time on CPUs.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Return the activated maps (n, outputs, 1, 1, 1) of maps (n, inputs, time, y, x)."""
        rows, weight = (
            each.permute(0, 2, 3, 4, 1).flatten(1) for each in (maps, self.weight * self.scale)
        )
        return self.activation(functional.linear(rows, weight, self.bias))[..., None, None, None]


def measure_deviation(maps: Tensor, span: int) -> Tensor:
    """Return the mean standard deviation within each ``span`` samples of maps (n, …), (n,)."""
    groups = maps.float().unflatten(0, (-1, span))
    variances = (groups - groups.mean(dim=1, keepdim=True)).square().mean(dim=1)
    return (variances + NORM_EPSILON).sqrt().flatten(1).mean(dim=1).repeat_interleave(span)


class FutureGan(nn.Module):
    """Generator and critic, and averages of the generator's weights if they are asked for."""

    def __init__(self, facts: Mapping[str, Any], span: int, is_averaged: bool = False) -> None:
        super().__init__()
        sizes = Sizes.parse(facts)
        self.generator = Generator(sizes, facts["widths"])
        self.critic = Critic(sizes, facts["critic_widths"], span)
        for parameter in self.parameters():
            if parameter.dim() == 5:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)
        self.averages = Averages(self.generator) if is_averaged else None

    def forward(self, frames: Tensor, stage: Stage) -> Tensor:
        """Return the frames that follow ``frames``, both (n, channels, time, y, x)."""
        return self.generator(frames, stage)


class Averages(nn.Module):
    """Running averages of a network's weights (Karras et al. 2017, appendix A.1), as buffers."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        for number, weights in enumerate(network.parameters()):
            self.register_buffer(str(number), weights.detach().clone())

    @torch.no_grad()
    def follow(self, network: nn.Module, share: float) -> None:
        """Go ``share`` of the way to the network's weights."""
        for average, weights in zip(self.buffers(), network.parameters(), strict=True):
            average.lerp_(weights, share)

    @contextmanager
    def stand_in(self, network: nn.Module) -> Iterator[None]:
        """Let the network have the averages for its weights, in place, until the end."""
        pairs = list(zip(self.buffers(), network.parameters(), strict=True))
        own = [weights.detach().clone() for _, weights in pairs]
        with torch.no_grad():
            for average, weights in pairs:
                weights.copy_(average)
            try:
                yield
            finally:
                for before, (_, weights) in zip(own, pairs, strict=True):
                    weights.copy_(before)


# Losses -------------------------------------------------------------------------------------------


def compute_penalty(critic: Callable[[Tensor], Tensor], clips: Tensor) -> Tensor:
    """Return how far the critic's slopes at ``clips`` (n, …) are from 1, squared: a mean, scalar.

    The norm is that of all pixels of a clip together (Gulrajani et al. 2017, arXiv:1704.00028,
    equation 3).
    """
    clips = clips.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(critic(clips).sum(), clips, create_graph=True)
    norms = (slopes.flatten(1).float().square().sum(dim=1) + 1e-12).sqrt()
    return (norms - 1).square().mean()


def mix(real: Tensor, false: Tensor, shares: Tensor) -> Tensor:
    """Return clips (n, …) between real and false ones, with one of ``shares`` (n,) for each."""
    return torch.lerp(real, false, shares.view(-1, 1, 1, 1, 1))


# Frames -------------------------------------------------------------------------------------------


def shrink(frames: Tensor, factor: int) -> Tensor:
    """Return every ``factor``-th pixel of frames (…, y, x), as the published code."""
    return frames[..., ::factor, ::factor]


def enlarge(frames: Tensor, factor: int) -> Tensor:
    """Return frames (…, y, x) with each pixel repeated ``factor`` times in both directions."""
    return frames.repeat_interleave(factor, dim=-1).repeat_interleave(factor, dim=-2)


def show(frames: Tensor, pixels: int, stage: Stage) -> Tensor:
    """Return frames (…, y, x) as networks of ``stage``, whose frames have ``pixels``, see them.

    While a stage fades in, so do the details of the frames.
    """
    seen = shrink(frames, frames.shape[-1] // pixels)
    if not stage.is_fading:
        return seen
    return torch.lerp(enlarge(shrink(seen, 2), 2), seen, stage.alpha)
