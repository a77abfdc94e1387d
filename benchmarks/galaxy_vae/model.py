"""The variational autoencoder of Arcelin 2021 (section 3.2.3): stamps to 32 latents and back.

The encoder is the trunk of galaxy_shape's network with a dense layer and the mean and scale of a
normal over the latents; the decoder leads back by transposed convolutions. Numerics follow the
published Keras model as those of galaxy_shape do, except for the first weights, see
``keep_variance``. Like galaxy_shape's network this one is turned by half a turn: Keras'
transposed convolution of stride 2 is then torch's with ``padding=1, output_padding=1``, the
transpose of the turned trunk's. A transposed convolution of stride 1 is a convolution with its
kernel turned, so it is one here.

Fluxes
    Images arrive and leave in units of the sky noise. The networks see tanh(asinh(x / s)), between
    −1 and 1, with s = I_b / 2.5 and I_b the mean of the stamps' maxima in band b. As tanh(asinh(u))
    = u/√(1 + u²), its inverse is y/√(1 − y²). The I_b are constants of the definition, not of the
    data at hand: weights and images mean the same wherever they are read.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cepheid.benchmarks.galaxy_shape.model import PReLU, SamePaddedConv2d, ShapeNetwork
from cepheid.benchmarks.galaxy_vae.framework_free import (
    DENSE_UNITS,
    FIRST_LOGIT,
    FIRST_SCALE,
    FIRST_SLOPE,
    FLUX_DIVISOR,
    LARGEST_LOGIT,
    MINIMUM_SCALE,
    OVERFLOW,
    Sizes,
)
from cepheid.reference.galaxies import properties
from cepheid.reference.torch.devices.values import to_device
from cepheid.reference.torch.flow.autoregressive import MaskedAutoregressiveFlow

DrawLatents = Callable[[Tensor, Tensor, Tensor], Tensor]  # means, scales and normal numbers


class FluxScaling(nn.Module):
    """The scaling between images in units of the sky noise and the inputs of the networks.

    Both directions keep the shape, (…, bands, y, x), and compute in float32.
    """

    scales: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        scales = torch.tensor(sizes.mean_maxima).div(FLUX_DIVISOR).view(-1, 1, 1)
        self.register_buffer("scales", scales, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Scale images (…, bands, y, x) in units of the sky noise to (−1, 1)."""
        scaled = images.float() / self.scales
        return scaled * torch.rsqrt(1 + scaled.square())

    def inverse(self, logits: Tensor) -> Tensor:
        """Return the images, (…, bands, y, x), whose scaled values are y = sigmoid(logits).

        It takes logits and not y, because few digits of 1 − y = sigmoid(−logits) would remain
        where a galaxy is bright.
        """
        logits = logits.float().clamp(max=LARGEST_LOGIT)
        share = torch.sigmoid(logits)
        return self.scales * share * torch.rsqrt(torch.sigmoid(-logits) * (1 + share))


class Encoder(nn.Module):
    """Batch normalisation and convolutions, a dense layer, a normal over the latents."""

    def __init__(self, sizes: Sizes, make_norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.trunk = ShapeNetwork(
            bands=sizes.bands,
            pixels=sizes.pixels,
            filters=sizes.filters,
            targets=1,  # of the head, which stays behind
            prelu=sizes.prelu,
            input_scaling="none",
            make_norm=make_norm,
        ).trunk
        self.dense = make_dense(sizes.filters[-1] * sizes.least_side**2, DENSE_UNITS)
        self.slope = nn.Parameter(torch.zeros(DENSE_UNITS))
        self.mean = make_dense(DENSE_UNITS, sizes.latents)
        self.scale = make_dense(DENSE_UNITS, sizes.latents)
        keep_variance([*self.trunk.modules(), self.dense])
        nn.init.constant_(self.slope, FIRST_SLOPE)
        nn.init.constant_(self.scale.bias, FIRST_SCALE)

    def forward(self, scaled: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of the latents, (batch, latents) each, float32.

        ``scaled`` images are (batch, bands, pixels, pixels).
        """
        features = F.prelu(*match_type(self.dense(self.trunk(scaled).flatten(1)), self.slope))
        return self.mean(features).float(), F.softplus(self.scale(features).float()) + MINIMUM_SCALE


class Decoder(nn.Module):
    """Two dense layers, blocks of two transposed convolutions, one convolution, a sigmoid.

    The first convolution of a block has stride 2.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.flux_scaling = FluxScaling(sizes)
        self.side = side = sizes.least_side
        channels = sizes.filters[-1]
        units = channels * side**2
        self.dense_1 = make_dense(sizes.latents, DENSE_UNITS)
        self.slope_1 = nn.Parameter(torch.zeros(DENSE_UNITS))
        self.dense_2 = make_dense(DENSE_UNITS, units)
        self.slope_2 = nn.Parameter(torch.zeros(units))
        layers: list[nn.Module] = []
        for width in reversed(sizes.filters):
            side *= 2
            layers += [DoublingConv2d(channels, width), PReLU(width, side, sizes.prelu)]
            layers += [SamePaddedConv2d(width, width, 1), PReLU(width, side, sizes.prelu)]
            channels = width
        last = SamePaddedConv2d(channels, sizes.bands, 1)
        self.blocks = nn.Sequential(*layers, last)
        keep_variance(self.modules())
        for slope in (self.slope_1, self.slope_2):
            nn.init.constant_(slope, FIRST_SLOPE)
        assert last.bias is not None
        nn.init.constant_(last.bias, FIRST_LOGIT)

    def forward(self, latents: Tensor) -> Tensor:
        """Return the logits of scaled images, (batch, bands, pixels, pixels), in float32.

        ``latents`` are (batch, latents).
        """
        features = F.prelu(*match_type(self.dense_1(latents), self.slope_1))
        features = F.prelu(*match_type(self.dense_2(features), self.slope_2))
        # Channels come last, as in Keras: what the convolutions want in memory is what is there.
        images = features.view(-1, self.side, self.side, features.shape[1] // self.side**2)
        return self.blocks(images.permute(0, 3, 1, 2)).float()

    def make_images(self, latents: Tensor) -> Tensor:
        """Return images in units of the sky noise, (batch, bands, y, x), of (batch, latents)."""
        return self.flux_scaling.inverse(self(latents))


class DoublingConv2d(nn.ConvTranspose2d):
    """A rotated 3×3 transposed convolution of stride 2 with Keras' 'same' padding.

    The bias is added afterwards: inside torch's transposed convolution its gradient takes longer on
    CPUs than those of images and kernel together.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, 2, padding=1, output_padding=1)
        nn.init.xavier_uniform_(self.weight)
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, images: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Map images (batch, in, height, width) to (batch, out, 2 · height, 2 · width)."""
        if output_size is not None:
            raise ValueError("the sides of the output are always twice those of the images")
        assert self.bias is not None
        doubled = F.conv_transpose2d(images, self.weight, None, 2, padding=1, output_padding=1)
        return doubled + self.bias[:, None, None].to(doubled.dtype)


class GalaxyVae(nn.Module):
    """Encoder, decoder, and the flow that learns the distribution of the latents.

    ``make_norm`` makes the norm of the encoder's inputs, as in galaxy_shape.
    """

    def __init__(self, sizes: Sizes, make_norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.encoder = Encoder(sizes, make_norm)
        self.decoder = Decoder(sizes)
        self.flow = MaskedAutoregressiveFlow(sizes.latents, sizes.flow_layers, sizes.flow_hidden)
        # Glorot-uniform the flow is far from the identity, and latents a few units from 0 overflow
        # on their way through it. With these weights at 0 it starts as the identity.
        for layer in self.flow.layers:
            nn.init.zeros_(layer.output.weight)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of the latents, (batch, latents) each.

        ``images`` are (batch, bands, pixels, pixels) in units of the sky noise.
        """
        return self.encoder(self.decoder.flux_scaling(images))

    def forward(
        self, images: Tensor, normal: Tensor, draw: DrawLatents
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return means and scales, (batch, latents), logits of images, and what the flow thinks.

        In training all parts take part in this one call, so that gradients can travel while they
        are made. ``draw`` draws latents with ``normal``, (batch, latents); the flow gives their log
        densities, (batch,), in float32, and its gradients do not reach the encoder.
        """
        means, scales = self.encode(images)
        latents = draw(means, scales, normal)
        logits = self.decoder(latents)
        with torch.autocast(latents.device.type, enabled=False):
            log_densities = self.flow.log_prob(latents.detach())
        return means, scales, logits, log_densities


def make_dense(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer with Keras' default: Glorot-uniform weights, biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def keep_variance(modules: Iterable[nn.Module]) -> None:
    """Initialise so that signals keep their size from layer to layer (He et al. 2015).

    Slopes of PReLU start at ``FIRST_SLOPE``. Kernels are uniform with a variance of 2/(inputs of
    one output). Keras' defaults, Glorot-uniform and slopes of 0, lose a factor of √2 at each layer,
    and another 2 at each doubling, where a pixel sees a quarter of the outputs: 2⁹ in the whole
    decoder. Shapes and colours are then learnt one by one, each after thousands of galaxies without
    progress.
    """
    for module in modules:
        if isinstance(module, PReLU):
            nn.init.constant_(module.slope, FIRST_SLOPE)
        elif isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            inputs = module.weight[0].numel()
            if isinstance(module, nn.ConvTranspose2d):  # its weight is (in, out, 3, 3)
                inputs = module.weight[:, 0].numel() // math.prod(module.stride)
            bound = math.sqrt(6 / inputs)
            nn.init.uniform_(module.weight, -bound, bound)


def match_type(values: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``values`` and ``slope``, each in its own shape, in one type, as ``prelu`` requires.

    Under autocast values are bfloat16 and parameters float32.
    """
    return values, slope.to(values.dtype)


def reconstruction_loss(logits: Tensor, scaled: Tensor) -> Tensor:
    """Return the binary cross-entropy of scaled images and logits in nats, (batch,).

    It is the sum over bands and pixels of (batch, bands, y, x). Its minimum is the entropy of the
    image, not 0.
    """
    return F.binary_cross_entropy_with_logits(logits, scaled, reduction="none").sum((1, 2, 3))


def kl_divergence(mean: Tensor, scale: Tensor) -> Tensor:
    """Return KL(N(mean, scale²) ‖ N(0, 1)) in nats, (batch,), of (batch, latents) each."""
    return 0.5 * (mean.square() + scale.square() - 1 - 2 * scale.log()).sum(1)


def cut_off_overflow(values: Tensor) -> Tensor:
    """Return finite ``values`` in the same shape; a flow far from its latents overflows."""
    return values.nan_to_num(nan=OVERFLOW).clamp(-OVERFLOW, OVERFLOW)


def measure_properties(images: Tensor, bands: str, pixel_scale_arcsec: float) -> np.ndarray:
    """Return the properties of images, (n, properties), as ``properties.measure``.

    ``images`` are (n, bands, y, x); the sums over pixels are computed on their device.
    """
    window = _keep_window(images.shape[-1], pixel_scale_arcsec, images.device)
    sums = images.float().flatten(2) @ window
    return properties.compute_from_sums(to_array(sums), bands)


def to_array(values: Tensor) -> np.ndarray:
    """Return values of any shape on the host, after a wait."""
    return values.cpu().numpy()


@cache
def _keep_window(pixels: int, pixel_scale_arcsec: float, place: torch.device) -> Tensor:
    """Return the weights of the sums over pixels, at ``place``: they are copied there once."""
    window = properties.make_window_moments(pixels, pixel_scale_arcsec)
    return to_device(window, place)
