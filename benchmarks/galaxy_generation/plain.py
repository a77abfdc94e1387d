"""The same flow and decoder in plain code: the reference is timed against it.

It is eager, in float32 and torch's memory layout; the flow passes through each layer as many times
as there are latents. It is still written for speed: its weights are masked once and not in each
pass, and it decodes as many images together as the reference, which is faster than all at once.
"""

from dataclasses import replace

from torch import nn

from cepheid.benchmarks.galaxy_generation import weights
from cepheid.benchmarks.galaxy_generation.task import AT_ONCE, GalaxyGeneration
from cepheid.benchmarks.galaxy_shape.model import PReLU
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.generation import GenerationWorkload
from cepheid.reference.torch.execution import DeviceRanks
from cepheid.reference.torch.flow.sampling import make_plain_sampler


def make(config: RunConfig, ranks: DeviceRanks) -> "PlainGeneration":
    """Return what generates, parts in turn; ``config`` has precision=fp32 and compile=off."""
    in_turn = replace(config.execution, own={**config.execution.own, AT_ONCE: "1"})
    config = replace(config, execution=in_turn)
    return PlainGeneration(config, ranks, weights.read_or_make(config))


class PlainGeneration(GalaxyGeneration):
    """The network with the plain sampler, and the decoder in torch's layout."""

    def build(self) -> int:
        """Build the network with torch's layout of kernels and slopes."""
        count = super().build()
        for layer in self.model.decoder.blocks:
            if isinstance(layer, PReLU):  # (y, x, channels), now in the memory of (channels, y, x)
                slope = layer.slope.detach()
                layer.slope.data = slope.permute(2, 0, 1).contiguous().permute(1, 2, 0)
            elif isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                layer.weight.data = layer.weight.detach().contiguous()
        self._eager = make_plain_sampler(self.model.flow)
        return count


WORKLOAD = GenerationWorkload(make)
