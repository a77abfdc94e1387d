"""The networks of galaxies, written from rules/from_scratch.md alone."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.rules.from_scratch.layers import begin, lay, make

BANDS = 6


def rectify(x: Tensor, slope: Tensor) -> Tensor:
    """Return PReLU with slopes (y, x, channel), or (unit,)."""
    slope = slope.permute(2, 0, 1) if slope.dim() == 3 else slope
    return x.clamp(min=0) + slope * x.clamp(max=0)


class Maps(nn.Module):
    def __init__(self, pixels: int, filters: Sequence[int], law: str, first: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(BANDS, eps=1e-3)
        begin(self.norm.weight, 0.0, 1.0)
        begin(self.norm.bias, 0.0)
        self.layers, self.slopes, channels = nn.ModuleList(), nn.ParameterList(), BANDS
        for width in filters:
            for into, stride in ((channels, 1), (width, 2)):
                pixels //= stride
                self.layers.append(lay(nn.Conv2d(into, width, 3, stride), law))
                self.slopes.append(make(pixels, pixels, width, mean=first))
            channels = width
        self.size = channels * pixels**2

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        for place, (layer, slope) in enumerate(zip(self.layers, self.slopes, strict=True)):
            after = 1 - place % 2
            x = rectify(layer(F.pad(x, (1, after, 1, after))), slope)
        return x.flatten(1)


class Shapes(nn.Module):
    """The network of galaxy_shape: stamps to means and lower triangular matrices."""

    def __init__(self, model: Any, pixels: int) -> None:
        super().__init__()
        self.maps = Maps(pixels, model["filters"], "glorot", 0.0)
        self.dense = lay(nn.Linear(self.maps.size, 5), "glorot")

    def forward(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        mean1, mean2, a, b, c = self.dense(self.maps(torch.asinh(stamps / 3))).unbind(1)
        first, last = F.softplus(a) + 1e-5, F.softplus(c) + 1e-5
        rows = torch.stack([first, torch.zeros_like(a)], 1), torch.stack([b, last], 1)
        return torch.stack([mean1, mean2], 1), torch.stack(rows, 1)


class BayesianShapes(Shapes):
    """The network of galaxy_bnn, whose weights are drawn with given noise."""

    def __init__(self, model: Any, pixels: int) -> None:
        super().__init__(model, pixels)
        self.spreads = nn.ParameterList()
        for _, mean in self.list_means():
            spread = model["initial_relative_scale"] * math.sqrt(2 / mean[0].numel())
            self.spreads.append(make(*mean.shape, mean=math.log(math.expm1(spread))))

    def list_means(self) -> list[tuple[str, Tensor]]:
        named = self.named_parameters()
        return [(n, each) for n, each in named if each.dim() in (2, 4) and "spreads" not in n]

    def draw(self, noise: Sequence[Tensor]) -> Mapping[str, Tensor]:
        drawn = zip(self.list_means(), self.spreads, noise, strict=False)
        return {name: m + F.softplus(s) * draw for (name, m), s, draw in drawn}


def nll(mean: Tensor, scale: Tensor, labels: Tensor) -> Any:
    """Return the mean of the metric's terms."""
    white = torch.linalg.solve_triangular(scale, (labels - mean)[..., None], upper=False)
    terms = (white[..., 0] ** 2).sum(1) / 2 + scale.diagonal(dim1=1, dim2=2).log().sum(1)
    return terms.mean() + math.log(2 * math.pi)


class Encoder(nn.Module):
    """Scaled images to means and deviations of the latents."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        latents = model["latents"]
        self.maps = Maps(model["pixels"], model["filters"], "he", 0.25)
        self.dense, self.slope = lay(nn.Linear(self.maps.size, 256), "he"), make(256, mean=0.25)
        self.mean = lay(nn.Linear(256, latents), "glorot")
        self.spread = lay(nn.Linear(256, latents), "glorot", (0.0, -3.0))

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        x = rectify(self.dense(self.maps(y)), self.slope)
        return self.mean(x), F.softplus(self.spread(x)) + 1e-5


class Decoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        filters = model["filters"][::-1]
        channels, side = filters[0], model["pixels"] >> len(filters)
        self.shape, sizes = (side, side, channels), [model["latents"], 256, channels * side**2]
        self.dense_slopes = nn.ParameterList(make(size, mean=0.25) for size in sizes[1:])
        self.dense = nn.ModuleList(lay(nn.Linear(a, b), "he") for a, b in pairwise(sizes))
        self.layers, self.slopes = nn.ModuleList(), nn.ParameterList()
        for width in filters:
            side *= 2
            twice = lay(nn.ConvTranspose2d(channels, width, 3, 2), "he")
            begin(twice.weight, math.sqrt(2 / (channels * 9 / 4)), is_even=True)
            self.layers += [twice, lay(nn.Conv2d(width, width, 3, padding=1), "he")]
            self.slopes += [make(side, side, width, mean=0.25) for _ in range(2)]
            channels = width
        self.last = lay(nn.Conv2d(channels, BANDS, 3, padding=1), "he", (0.0, -3.94))

    def forward(self, z: Tensor) -> Tensor:
        for layer, slope in zip(self.dense, self.dense_slopes, strict=True):
            z = rectify(layer(z), slope)
        x = z.unflatten(1, self.shape).permute(0, 3, 1, 2)
        for place, (layer, slope) in enumerate(zip(self.layers, self.slopes, strict=True)):
            x = rectify(layer(x) if place % 2 else layer(x)[:, :, 1:, 1:], slope)
        logits: Tensor = self.last(x)
        return logits


class Flow(nn.Module):
    """Masked networks from the latents to the noise, and back."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        latents, hidden = model["latents"], model["flow_hidden"]
        order = torch.arange(1, latents + 1, device="cpu")
        degrees = [order]
        for n in hidden:
            k = torch.arange(1, n + 1, device="cpu")
            degrees.append((k * (latents - 1) / (n + 1)).ceil().clamp(min=1))
        self.masks = [b[:, None] >= a for a, b in pairwise(degrees)]
        self.masks.append(order.repeat_interleave(2)[:, None] > degrees[-1])
        self.nets = nn.ModuleList()
        for _ in range(model["flow_layers"]):
            sizes = pairwise([latents, *hidden, 2 * latents])
            net = [lay(nn.Linear(a, b), "glorot") for a, b in sizes]
            begin(net[-1].weight, 0.0)
            self.nets.append(nn.ModuleList(net))

    def say(self, net: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return shifts and log scales."""
        for layer, mask in zip(net, self.masks, strict=True):
            z = F.leaky_relu(F.linear(z, layer.weight * mask, layer.bias), 0.2)
        return z[:, ::2], z[:, 1::2]

    def forward(self, z: Tensor) -> Tensor:
        """Return the log density of latents."""
        total = torch.zeros(len(z))
        for place, net in enumerate(self.nets):
            z = z.flip(1) if place else z
            t, u = self.say(net, z)
            z, total = (z - t) * (-u).exp(), total + u.sum(1)
        return -(z**2 + math.log(2 * math.pi)).sum(1) / 2 - total

    def invert(self, noise: Tensor) -> Tensor:
        for place in range(len(self.nets) - 1, -1, -1):
            z = torch.zeros_like(noise)
            for _ in range(noise.shape[1]):
                t, u = self.say(self.nets[place], z)
                z = noise * u.exp() + t
            noise = z.flip(1) if place else z
        return noise


class Generative(nn.Module):
    """The networks of galaxy_vae, or those of galaxy_generation, without the encoder."""

    def __init__(self, model: Any, encodes: bool = False) -> None:
        super().__init__()
        self.encoder = Encoder(model) if encodes else None
        self.decoder, self.flow = Decoder(model), Flow(model)
        self.units = [maximum / 2.5 for maximum in model["mean_maxima"]]

    def forward(self, noise: Tensor) -> Any:
        """Return images of noise."""
        p = self.decoder(self.flow.invert(noise).clamp(-1e4, 1e4)).clamp(max=15).sigmoid()
        return torch.tensor(self.units).view(-1, 1, 1) * p / (1 - p**2).sqrt()

    def measure_loss(self, images: Tensor, noise: Tensor, kl_weight: float) -> Any:
        assert self.encoder is not None
        x = images / torch.tensor(self.units).view(-1, 1, 1)
        y = x / (1 + x**2).sqrt()
        m, s = self.encoder(y)
        z = m + s * noise
        each = F.binary_cross_entropy_with_logits(self.decoder(z), y, reduction="none")
        kl = (s**2 + m**2 - 1).sum(1) / 2 - s.log().sum(1)
        of_flow = (-self.flow(z.detach())).clamp(-1e4, 1e4)
        return (each.sum((1, 2, 3)) + kl_weight * kl + of_flow).mean()
