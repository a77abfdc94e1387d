"""What generates: the flow and the decoder of galaxy_vae, without its encoder."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from benchmarks.galaxy_vae.flow import MaskedAutoregressiveFlow
from benchmarks.galaxy_vae.model import Decoder


class Generative(nn.Module):
    """N(0, 1) noise to latents (``flow``), latents to images (``decoder``).

    ``model`` and ``data`` are those sections of the definition. Names of parameters are those of
    ``GalaxyVae``.
    """

    def __init__(self, model: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        super().__init__()
        self.decoder = Decoder(
            bands=len(data["bands"]),
            pixels=data["pixels"],
            filters=model["filters"],
            latents=model["latents"],
            prelu=model["prelu"],
            mean_maxima=model["mean_maxima"],
        )
        hidden = tuple(model["flow_hidden"])
        self.flow = MaskedAutoregressiveFlow(model["latents"], model["flow_layers"], hidden)
        convert_conv2d_weight_memory_format(self.decoder, torch.channels_last)
        self.requires_grad_(False)
