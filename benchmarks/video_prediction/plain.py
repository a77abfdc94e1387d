"""FutureGAN as one writes it first, in an eager loop: the reference is timed against it.

No other implementation installs here. This one has the default memory layout, scales maps instead
of weights as the published code does, gives the critic its deviation as one more channel, and has
passes of their own for real clips and for the prediction of each network. Its last layer of the
critic is a convolution. In the generator's step all weights of the critic get gradients, which
nobody reads. Losses and updates are the same.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.video_prediction.hyperparameters import Stage
from cepheid.benchmarks.video_prediction.model import (
    DeviationConvolution,
    EqualizedConvolution,
    compute_penalty,
    measure_deviation,
    mix,
)
from cepheid.benchmarks.video_prediction.task import GENERATOR, VideoPrediction
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "PlainVideoPrediction":
    """Return the task; ``config`` has compile=off and the precision of the reference."""
    return PlainVideoPrediction(config, ranks)


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


class PlainVideoPrediction(VideoPrediction):
    """The same networks, losses and updates in the obvious way."""

    def make_network(self) -> nn.Module:
        """Return the networks with plain convolutions."""
        return _replace_convolutions(super().make_network())

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return torch's default Adam."""
        return torch.optim.Adam(self.model.parameters(), **self.hyperparameters.torch_options)

    def generate(self, past: Tensor, stage: Stage) -> Tensor:
        """Return the frames that follow, anew for each network; shapes are those of the base."""
        with torch.set_grad_enabled(GENERATOR in self.trained), self.autocast():
            frames: Tensor = self.model(past, stage).float()
        return frames

    def compute_critic_loss(
        self, past: Tensor, future: Tensor, predicted: Tensor, stage: Stage
    ) -> Tensor:
        """Return the critic's loss, a scalar, from passes of real, false and mixed clips."""
        values = self.hyperparameters
        real, false = (torch.cat((past, frames), dim=2) for frames in (future, predicted))
        of_real, of_false = self.judge(real, stage), self.judge(false, stage)
        loss = of_false.mean() - of_real.mean()
        loss = loss + values.gan_drift_weight * of_real.square().mean()
        interval = values.gan_penalty_interval_steps
        if self.samples // self.config.global_batch_size % interval == 0:
            mixed = mix(real, false, self.draw_shares(len(real)))
            penalty = compute_penalty(lambda clips: self.judge(clips, stage), mixed)
            loss = loss + interval * values.gan_penalty_weight * penalty
        return loss

    def compute_generator_loss(
        self, past: Tensor, predicted: Tensor, error: Tensor, stage: Stage
    ) -> Tensor:
        """Return the generator's loss, a scalar; the critic's gradients are thrown away."""
        scores = self.judge(torch.cat((past, predicted), dim=2), stage)
        return self.hyperparameters.gan_pixel_weight * error - scores.mean()

    def loss_and_gradients(self) -> Tensor:
        """Set the gradients of ``trained`` only; return the error of a pixel, a scalar."""
        error = super().loss_and_gradients()
        for name, network in self.model.named_children():
            if name not in self.trained:
                network.zero_grad()
        return error


def _replace_convolutions(module: nn.Module) -> nn.Module:
    for name, child in list(module.named_children()):
        if isinstance(child, EqualizedConvolution):
            setattr(module, name, PlainConvolution(child))
        else:
            _replace_convolutions(child)
    return module
