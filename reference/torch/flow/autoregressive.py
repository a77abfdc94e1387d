"""The masked autoregressive flow of Arcelin 2021 (section 3.3): a density over the VAE's latents.

Eight MADE layers (Germain 2015, Papamakarios 2017) with reversals between them carry N(0, 1) noise
to latents. Masks are those that TensorFlow Probability makes by default: inputs left to right,
hidden degrees spread equally (373,536 of the 725,504 parameters take part). Leaky ReLU (0.2,
TensorFlow's default) follows every layer, the *output* too, as in the published code: a negative
shift or log scale is a fifth of what the last layer says.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS, HIDDEN_UNITS = 8, (256, 256)
NEGATIVE_SLOPE = 0.2


class MaskedLinear(nn.Linear):
    """A dense layer whose output of degree d sees the inputs of degree ≤ d (or < d: ``strict``)."""

    mask: Tensor

    def __init__(self, inputs: Tensor, outputs: Tensor, *, strict: bool = False) -> None:
        super().__init__(len(inputs), len(outputs))
        seen = inputs < outputs[:, None] if strict else inputs <= outputs[:, None]
        self.register_buffer("mask", seen.float(), persistent=False)
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.weight.mul_(self.mask)

    def forward(self, values: Tensor) -> Tensor:
        """(…, inputs) to (…, outputs)."""
        return F.linear(values, self.weight * self.mask, self.bias)


class MADE(nn.Module):
    """A network for the shift and log scale of each feature, from the features before it.

    ``degrees`` of the hidden layers rise from unit to unit. The output holds shift and log scale of
    the first feature, then of the second, and so on.
    """

    def __init__(self, features: int, hidden_units: Sequence[int]) -> None:
        super().__init__()
        order = torch.arange(1, features + 1)
        self.degrees = [order, *(_equal_degrees(features, units) for units in hidden_units)]
        hidden = [MaskedLinear(before, after) for before, after in pairwise(self.degrees)]
        self.hidden = cast(Sequence[MaskedLinear], nn.ModuleList(hidden))
        self.output = MaskedLinear(self.degrees[-1], order.repeat_interleave(2), strict=True)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return shift and log scale of values, all (…, features)."""
        for layer in [*self.hidden, self.output]:
            values = F.leaky_relu(layer(values), NEGATIVE_SLOPE)
        shift, log_scale = values.unflatten(-1, (-1, 2)).unbind(-1)
        return shift, log_scale


class MaskedAutoregressiveFlow(nn.Module):
    """N(0, 1) through ``layers`` of ``MADE``: value = noise · exp(log scale) + shift.

    The reversal of the features between two layers lets each see the others in turn.
    """

    def __init__(
        self, features: int, layers: int = LAYERS, hidden_units: Sequence[int] = HIDDEN_UNITS
    ) -> None:
        super().__init__()
        made = [MADE(features, hidden_units) for _ in range(layers)]
        self.layers = cast(Sequence[MADE], nn.ModuleList(made))

    def log_prob(self, latents: Tensor) -> Tensor:
        """Return the log density in nats, (batch,), of (batch, features), in one pass."""
        noise, log_determinant = self.compute_noise(latents)
        normal = -0.5 * (noise.square() + math.log(2 * math.pi)).sum(-1)
        return normal + log_determinant

    def compute_noise(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noise of ``latents``, (batch, features), and log |∂noise/∂latents|, (batch,).

        It is the inverse of ``sample``.
        """
        values, log_determinant = latents, latents.new_zeros(latents.shape[:-1])
        for number, layer in enumerate(self.layers):
            if number:
                values = values.flip(-1)
            shift, log_scale = layer(values)
            values = (values - shift) * torch.exp(-log_scale)
            log_determinant = log_determinant - log_scale.sum(-1)
        return values, log_determinant

    def sample(self, noise: Tensor) -> Tensor:
        """Map noise (batch, features) to latents of the same shape, the plain way.

        It passes through each layer as many times as there are features; each pass determines one
        more.
        """
        values = noise
        for number, layer in enumerate(reversed(self.layers)):
            if number:
                values = values.flip(-1)
            given, values = values, torch.zeros_like(values)
            for _ in range(noise.shape[-1]):
                shift, log_scale = layer(values)
                values = given * torch.exp(log_scale) + shift
        return values


def _equal_degrees(features: int, units: int) -> Tensor:
    """Return hidden degrees from 1 to features − 1, equally spread, rising (TFP's ``equal``)."""
    steps = torch.arange(1, units + 1, dtype=torch.float64)
    return torch.ceil(steps * (features - 1) / (units + 1)).long().clamp(min=1)
