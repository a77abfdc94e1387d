"""FutureGAN as one writes it first, in an eager loop: the reference is timed against it.

No other implementation installs here. This one has the default memory layout, scales maps instead
of weights as the published code does, gives the critic its deviation as one more channel, and has
passes of their own for real clips and for the prediction of each network. Its last layer of the
critic is a convolution. In the generator's step all weights of the critic get gradients, which
nobody reads. Losses and updates are the same.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.video_prediction.growth import Stage, Videos
from cepheid.benchmarks.video_prediction.losses import GENERATOR, Ways, compute_loss, judge
from cepheid.benchmarks.video_prediction.model import (
    DeviationConvolution,
    EqualizedConvolution,
    measure_deviation,
)
from cepheid.benchmarks.video_prediction.task import WORKLOAD as REFERENCE
from cepheid.reference.torch.broken import use_default_optimizer
from cepheid.reference.torch.workload import Network, Norms


class PlainConvolution(nn.Module):
    """An equalised convolution, or one with the deviation of the minibatch, the obvious way."""

    def __init__(self, like: EqualizedConvolution) -> None:
        super().__init__()
        self.like = like
        for parameter in like.parameters():
            parameter.data = parameter.data.contiguous()

    def forward(self, maps: Tensor) -> Tensor:
        """Return the activated maps; shapes as ``EqualizedConvolution.forward``."""
        like = self.like
        if isinstance(like, DeviationConvolution):
            channel = measure_deviation(maps, like.span).view(-1, 1, 1, 1, 1)
            maps = torch.cat((maps, channel.expand(-1, 1, *maps.shape[2:])), dim=1)
        convolve = functional.conv_transpose3d if like.is_transposed else functional.conv3d
        maps = maps.contiguous() * like.scale
        return like.activation(convolve(maps, like.weight, like.bias, like.stride, like.padding))


def _replace_convolutions(module: nn.Module) -> nn.Module:
    for name, child in list(module.named_children()):
        if isinstance(child, EqualizedConvolution):
            setattr(module, name, PlainConvolution(child))
        else:
            _replace_convolutions(child)
    return module


def make_network(shape: Videos, norms: Norms) -> nn.Module:
    """Return the networks with plain convolutions."""
    return _replace_convolutions(REFERENCE.make_network(shape, norms))


def generate(network: Network, past: Tensor, stage: Stage) -> Tensor:
    """Return the frames that follow, (n, channels, time, y, x), anew for each network."""
    needs_gradients = GENERATOR in network.module.next.trained
    with torch.set_grad_enabled(needs_gradients), network.autocast():
        return network.module(past, stage).float()


def judge_both(network: Network, stage: Stage, real: Tensor, false: Tensor) -> Sequence[Tensor]:
    """Return the critic's scores of real and of false clips, (n,) each, in passes of their own."""
    return judge(network, stage, real), judge(network, stage, false)


WORKLOAD = use_default_optimizer(REFERENCE).vary(
    make_network=make_network,
    compute_loss=partial(compute_loss, ways=Ways(generate, judge_both, judge)),
)
"""The same networks, losses and updates; for compile=off and the precision of the reference."""
