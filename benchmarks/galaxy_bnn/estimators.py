"""Two other ways to draw weights in training, which the open division may use.

Plain reparameterisation draws one weight for the whole batch, so that the errors of a gradient that
the draw causes are the same for all samples and do not average out. Here every sample has a draw
of its own, in effect, and pays for it: either layer convolves (or multiplies) twice.

Flipout (Wen et al. 2018, arXiv:1803.04386)
    Sample n sees μ + σε ∘ rₙsₙᵀ: one shared ε, and random signs of its own, one for each channel
    that goes in (s) and out (r).

Local reparameterisation (Kingma, Salimans & Welling 2015, arXiv:1506.02557)
    What goes out is drawn instead of what goes in: normal with mean x∗μ and variance x²∗σ². That is
    exact for a dense layer; a convolution, which uses its kernel at all positions, is treated as
    if each position had one of its own.

Both are unbiased for the expected loss of their own model, and equal the plain way in evaluation,
where weights are drawn.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cepheid.benchmarks.galaxy_bnn.model import GaussianWeight, get_gaussian_weight
from cepheid.benchmarks.galaxy_shape.model import NormalisedConv2d, ShapeNetwork
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.torch.devices.values import find_values
from cepheid.rules.errors import UserError, did_you_mean

PLAIN = "reparameterisation"
SMALLEST_VARIANCE = 1e-12  # below it the gradient of a standard deviation is all rounding


class PerSampleLayer(nn.Module):
    """A convolution or dense layer with a Gaussian weight, drawn for each sample in training.

    ``noise`` is (samples, entries_per_sample), standard normal when it is drawn, 0 before.
    """

    noise: Tensor
    entries_per_sample: int

    def __init__(self, layer: nn.Conv2d | nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("noise", torch.zeros(0), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the layer, in training with a draw for each sample.

        In evaluation it uses the one draw of the layer's own noise. Shapes are those of the layer.
        """
        if not self.training:
            return self.layer(inputs)
        return self.draw_output(inputs, *get_gaussian_weight(self.layer))

    def draw_output(self, inputs: Tensor, mean: Tensor, posterior: GaussianWeight) -> Tensor:
        """Return the output in training, in the shape of the layer's output."""
        raise NotImplementedError

    def apply_weight(self, inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the linear map of the layer with another weight."""
        if isinstance(self.layer, nn.Conv2d):
            return F.conv2d(inputs, weight, bias, self.layer.stride, self.layer.padding)
        return F.linear(inputs, weight, bias)


class Flipout(PerSampleLayer):
    """One weight draw for the batch, decorrelated by random signs for each sample."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, output_side: int) -> None:
        super().__init__(layer)
        self.channels = [layer.weight.shape[1], layer.weight.shape[0]]
        self.entries_per_sample = sum(self.channels)

    def draw_output(self, inputs: Tensor, mean: Tensor, posterior: GaussianWeight) -> Tensor:
        """Return x∗μ + ((x∘s)∗σε)∘r, in the shape of the layer's output."""
        signs = torch.where(self.noise < 0, -1.0, 1.0).to(inputs.dtype)
        into, out_of = (
            part.reshape(part.shape + (1,) * (inputs.ndim - 2))
            for part in signs.split(self.channels, dim=1)
        )
        deviation = self.apply_weight(inputs * into, posterior.scale * posterior.noise)
        return self.apply_weight(inputs, mean, self.layer.bias) + deviation * out_of


class LocalReparameterisation(PerSampleLayer):
    """A layer whose output is drawn, for each sample and position on its own."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, output_side: int) -> None:
        super().__init__(layer)
        self.shape = (output_side, output_side, layer.weight.shape[0])
        self.entries_per_sample = output_side**2 * layer.weight.shape[0]

    def draw_output(self, inputs: Tensor, mean: Tensor, posterior: GaussianWeight) -> Tensor:
        """Return x∗μ + √(x²∗σ²)∘noise, in the shape of the layer's output."""
        expected = self.apply_weight(inputs, mean, self.layer.bias)
        variance = self.apply_weight(inputs.square(), posterior.scale.square())
        deviation = variance.clamp(min=SMALLEST_VARIANCE).sqrt()
        noise: Tensor = self.noise
        if inputs.ndim == 4:  # in memory channels come last, as those of the images
            noise = noise.unflatten(1, self.shape).permute(0, 3, 1, 2)
        return expected + deviation * noise


PER_SAMPLE: Mapping[str, Callable[[nn.Conv2d | nn.Linear, int], PerSampleLayer]] = {
    "flipout": Flipout,
    "local_reparameterisation": LocalReparameterisation,
}
"""By the names that ``--set weight_sampling=…`` knows."""


def use_estimator(network: ShapeNetwork, name: str, pixels: int) -> None:
    """Let every Gaussian layer of ``network`` draw its weight as the estimator ``name`` does.

    ``pixels`` is the side of the images. Raises UserError for an unknown name.
    """
    if name == PLAIN:
        return
    if name not in PER_SAMPLE:
        known = [PLAIN, *PER_SAMPLE]
        raise UserError(
            f"--set weight_sampling={name}: there is no such estimator{did_you_mean(name, known)} "
            f"(all: {', '.join(known)})"
        )
    wrapped = PER_SAMPLE[name]
    side = pixels
    for position, layer in enumerate(network.trunk):
        if isinstance(layer, NormalisedConv2d):  # the norm cannot be folded into many kernels
            convolution = wrapped(layer.convolution, side)
            network.trunk[position] = nn.Sequential(layer.norm, convolution)
        elif isinstance(layer, nn.Conv2d):
            side //= layer.stride[0]
            network.trunk[position] = wrapped(layer, side)
    network.head = wrapped(network.head, 1)  # type: ignore[assignment]


class SampleNoise:
    """The noise of all layers that draw for each sample, one row for each of ``samples``.

    Make it when the network is on its device. The noise of a sample depends on the run's seed and
    on its place in the run, so that any number of ranks and pieces draws the same.
    """

    def __init__(self, network: nn.Module, samples: int) -> None:
        modules = network.modules()
        self._layers = [layer for layer in modules if isinstance(layer, PerSampleLayer)]
        self._device = next(network.parameters()).device
        self._random = find_values(self._device).make_generator()
        self._allocate(samples)

    def _allocate(self, samples: int) -> None:
        sizes = [layer.entries_per_sample for layer in self._layers]
        self.values = torch.zeros(samples, sum(sizes), device=self._device)
        for layer, part in zip(self._layers, self.values.split(sizes, dim=1), strict=True):
            layer.noise = part

    def draw(self, seed: int, first_sample: int, samples: int | None = None) -> None:
        """Draw the noise of ``samples`` samples of a step, numbered from ``first_sample``.

        Without a number they are as many as before.
        """
        if not self._layers:
            return
        if samples not in (None, len(self.values)):
            self._allocate(samples)
        for number, row in enumerate(self.values, first_sample):
            key = int(make_generator(seed, "sample noise", number).integers(2**63))
            row.normal_(generator=self._random.manual_seed(key))
