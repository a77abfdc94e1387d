"""Autoencoder and flow in plain code: the reference is timed against it.

torch's own layers in place of those of ``model``, with the same parameters, the same loss and the
same gradients within rounding: the batch normalisation is not folded into a convolution, slopes lie
as images do by default, the bias of a transposed convolution is its own. Default memory layout,
default Adam, no compilation, no autocast, float32. The tests compare the two.
"""

import torch
from torch import nn

from cepheid.benchmarks.galaxy_shape.model import NormalisedConv2d
from cepheid.benchmarks.galaxy_shape.model import PReLU as ReferencePReLU
from cepheid.benchmarks.galaxy_shape.plain import PReLU
from cepheid.benchmarks.galaxy_vae.framework_free import Sizes
from cepheid.benchmarks.galaxy_vae.model import GalaxyVae
from cepheid.benchmarks.galaxy_vae.task import WORKLOAD as REFERENCE
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.torch.broken import use_default_optimizer
from cepheid.reference.torch.workload import Norms


def make_plain(network: GalaxyVae) -> GalaxyVae:
    """Replace the layers of encoder and decoder by plain ones with the same values, in place.

    The dense layers and the flow are plain as they are.
    """
    for module, name in ((network.encoder, "trunk"), (network.decoder, "blocks")):
        layers = [_make_plain_layer(layer) for layer in getattr(module, name)]
        setattr(module, name, nn.Sequential(*layers))
    return network


@torch.no_grad()
def _make_plain_layer(layer: nn.Module) -> nn.Module:
    """Return a layer of torch's that computes the same."""
    if isinstance(layer, NormalisedConv2d):
        keras = layer.norm
        norm = nn.BatchNorm2d(len(keras.weight), keras.epsilon, 1 - keras.momentum)
        norm.weight.copy_(keras.weight)
        norm.bias.copy_(keras.bias)
        return nn.Sequential(norm, _make_plain_layer(layer.convolution))
    if isinstance(layer, ReferencePReLU):
        side, _, channels = layer.slope.shape
        activation = PReLU(channels, side)
        activation.slope.copy_(layer.slope.permute(2, 0, 1))
        return activation
    assert isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)
    kind = nn.Conv2d if isinstance(layer, nn.Conv2d) else nn.ConvTranspose2d
    options = {} if kind is nn.Conv2d else {"output_padding": 1}
    convolution = kind(layer.in_channels, layer.out_channels, 3, layer.stride, padding=1, **options)  # type: ignore[arg-type]
    convolution.load_state_dict(layer.state_dict())
    return convolution


def make_network(shape: Galaxies, norms: Norms) -> GalaxyVae:
    """Return the network with plain layers, initialised as the reference's is."""
    sizes = Sizes.parse(shape.definition.model, shape.definition.data)
    return make_plain(GalaxyVae(sizes, norms.make(**sizes.norm_options)))


WORKLOAD = use_default_optimizer(REFERENCE).vary(make_network=make_network)
"""The task with these layers and torch's default optimizer; for precision=fp32 and compile=off."""
