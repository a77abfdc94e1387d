"""The generator: flow and decoder of galaxy_vae, without its encoder."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.galaxy_shape.model import SamePaddedConv2d
from cepheid.benchmarks.galaxy_vae.framework_free import Sizes
from cepheid.benchmarks.galaxy_vae.model import Decoder, cut_off_overflow
from cepheid.reference.torch.flow.autoregressive import MaskedAutoregressiveFlow


class Float32Conv2d(SamePaddedConv2d):
    """A convolution that stays in float32 under autocast."""

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, in, y, x) of any type to (batch, out, y, x) in float32."""
        with torch.autocast(images.device.type, enabled=False):
            return F.conv2d(images.float(), self.weight, self.bias, padding=self.padding)


class Generative(nn.Module):
    """A network from N(0, 1) noise to latents (``flow``) and from latents to images (``decoder``).

    ``model`` and ``data`` are those sections of the definition. Parameters have the same names as
    in ``GalaxyVae``.
    """

    def __init__(self, model: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        super().__init__()
        sizes = Sizes.parse(model, data)
        self.latents = sizes.latents
        self.decoder = Decoder(sizes)
        # In bfloat16 its bias alone is wrong by up to 0.008, the same share of the flux of every
        # pixel of a band, which shifts the colours. It is a tenth of the decoder's work.
        last = self.decoder.blocks[-1]
        assert isinstance(last, SamePaddedConv2d)
        in_float32 = Float32Conv2d(last.in_channels, last.out_channels, 1)
        in_float32.load_state_dict(last.state_dict())
        self.decoder.blocks[-1] = in_float32
        self.flow = MaskedAutoregressiveFlow(sizes.latents, sizes.flow_layers, sizes.flow_hidden)
        convert_conv2d_weight_memory_format(self.decoder, torch.channels_last)
        self.requires_grad_(False)

    @torch.no_grad()
    def generate(self, count: int, seed: int | None = None) -> Tensor:
        """Return new galaxies, (count, bands, y, x), in units of the sky noise; without noise.

        ``seed`` makes them the same galaxies each time; without one torch's generator draws them.
        """
        like = next(self.flow.parameters())
        random = None if seed is None else torch.Generator().manual_seed(seed)
        noise = torch.randn(count, self.latents, generator=random).to(like)
        return self.decoder.make_images(cut_off_overflow(self.flow.sample(noise)))
