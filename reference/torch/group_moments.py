"""Normalisation by the moments of the values of several ranks, in few passes over the maps."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from reference.torch.distributed import Span
from reference.torch.shared_memory import gather_rows

_normalize_backward = torch.ops.aten.native_batch_norm_backward.default  # not looked up each time


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
    moments = gather_rows(_compute_moments(images.detach()), over.group)
    mean, variance = map(torch.as_tensor, _combine_moments(moments, over.shares))
    normalized = _NormalizeByMoments.apply(images, weight, bias, mean, variance, epsilon, over)
    return normalized, mean, variance


class _NormalizeByMoments(torch.autograd.Function):
    """Normalisation by the moments of the images of several ranks, with its gradient."""

    @staticmethod
    def forward(
        context: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        variance: Tensor,
        epsilon: float,
        over: Span,
    ) -> Tensor:
        context.save_for_backward(images, weight, mean, variance)
        context.epsilon, context.over = epsilon, over
        return functional.batch_norm(images, mean, variance, weight, bias, False, 0.0, epsilon)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, mean, variance = context.saved_tensors
        epsilon, over = context.epsilon, context.over
        # As if the moments were constants. The gradient through them follows.
        direct, of_weight, of_bias = _normalize_backward(
            gradient, images, weight, mean, variance, None, None, False, epsilon, (True,) * 3
        )
        of_weights, of_biases = gather_rows((of_weight, of_bias), over.group).sum(0)
        weight, mean, variance = map(_choose_arithmetic, (weight, mean, variance))
        inverse = (variance + epsilon) ** -0.5
        share = over.shares[dist.get_rank(over.group)] if over.shares else 1 / over.ranks
        scale = weight * inverse * (-share * len(mean) / images.numel())
        slope = scale * inverse * of_weights
        level = scale * of_biases - slope * mean
        slope, level = (torch.as_tensor(each).view(-1, 1, 1) for each in (slope, level))
        of_images = direct.addcmul_(images, slope).add_(level)
        return of_images, of_weight, of_bias, None, None, None, None


def _choose_arithmetic(values: Tensor) -> Any:
    """Return ``values`` as what ``gather_rows`` would: on processors a NumPy array."""
    return values.detach().numpy() if values.is_cpu else values


def _compute_moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of each channel, (channels,) each.

    On a processor ``torch.var_mean`` takes 10 to 30 times as long as the kernel of batch norms.
    """
    if images.is_cpu:
        mean, variance = torch.batch_norm_update_stats(images, None, None, 0.0)
    else:
        variance, mean = torch.var_mean(images, dim=(0, 2, 3), correction=0)
    return mean, variance


def _combine_moments(moments: Any, shares: Sequence[float]) -> tuple[Any, Any]:
    """Return the mean and the variance of all ranks' values, of (ranks, 2, channels).

    ``moments`` are an array or a tensor; ``shares`` are the ranks' weights, if they are not equal.
    """

    def average(values: Any) -> Any:
        if not shares:
            return values.sum(0) / len(values)
        return sum(share * each for share, each in zip(shares, values, strict=True))

    mean, within = average(moments)
    return mean, within + average((moments[:, 0] - mean) ** 2)
