"""Normalisation by the moments of the values of several ranks, in few passes over the maps."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from reference.torch.distributed import Span
from reference.torch.shared_memory import add, gather


def normalize_over_ranks(
    images: Tensor, weight: Tensor, bias: Tensor, epsilon: float, over: Span
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised ``images``, and the mean and the biased variance of each channel.

    The moments, (channels,), are those over the ranks of ``over.group``. Gradients flow through the
    first result only, also to the images of other ranks; it is shaped as ``images``, (batch,
    channels, height, width), which are float32 or float64, and lies in memory as they do.

    The two collectives, one in each direction, carry two numbers for each channel. PyTorch's own
    kernels of batch norms pass over the maps. Written out as tensor operations, this made a step
    of ResNet-50 take 1.5 times the processor time. The maps of the mini network are so small that
    each further operation counts, also one on a number for each channel.
    """
    normalized, mean, variance = _NormalizeOverRanks.apply(images, weight, bias, epsilon, over)
    return normalized, mean, variance


class _NormalizeOverRanks(torch.autograd.Function):
    """``normalize_over_ranks`` with its gradient."""

    @staticmethod
    def forward(
        context: Any, images: Tensor, weight: Tensor, bias: Tensor, epsilon: float, over: Span
    ) -> tuple[Tensor, Tensor, Tensor]:
        moments = gather(torch.stack(_compute_moments(images)), over.group)
        mean, variance = _combine_moments(moments, over.shares)
        context.save_for_backward(images, weight, mean, variance)
        context.epsilon, context.group = epsilon, over.group
        share = over.shares[dist.get_rank(over.group)] if over.shares else 1 / over.ranks
        context.value_share = share * len(mean) / images.numel()
        context.mark_non_differentiable(mean, variance)
        normalized = functional.batch_norm(
            images, mean, variance, weight, bias, False, 0.0, epsilon
        )
        return normalized, mean, variance

    @staticmethod
    def backward(context: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, mean, variance = context.saved_tensors
        epsilon = context.epsilon
        # As if the moments were constants. The gradient through them follows.
        direct, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, images, weight, mean, variance, None, None, False, epsilon, [True] * 3
        )
        sums = add(torch.stack((of_weight, of_bias)), context.group)
        inverse = torch.rsqrt(variance + epsilon)
        slope, level = (sums * (weight * inverse)).unbind()
        slope = slope * inverse
        level = level.addcmul(slope, mean, value=-1)
        share = -context.value_share
        direct.addcmul_(images, slope.view(-1, 1, 1), value=share)
        of_images = direct.add_(level.view(-1, 1, 1), alpha=share)
        return of_images, of_weight, of_bias, None, None


def _compute_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of each channel, (channels,) each.

    On a processor ``torch.var_mean`` takes 10 to 30 times as long as the kernel of batch norms.
    """
    if images.is_cpu:
        mean, variance = torch.batch_norm_update_stats(images, None, None, 0.0)
    else:
        variance, mean = torch.var_mean(images, dim=(0, 2, 3), correction=0)
    return mean, variance


def _combine_moments(moments: Tensor, shares: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of all ranks' values, of (ranks, 2, channels).

    ``shares`` are the ranks' weights, if they are not equal.
    """

    def average(values: Tensor) -> Tensor:
        if not shares:
            return values.mean(0)
        weights = values.new_tensor(shares).view(-1, *[1] * (values.ndim - 1))
        return (weights * values).sum(0)

    mean, within = average(moments).unbind()
    return mean, within + average((moments[:, 0] - mean).square())
