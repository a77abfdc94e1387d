"""Normalisation by the moments of the values of several ranks, in few passes over the maps."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cepheid.reference.torch.ranks.collectives import Span
from cepheid.reference.torch.ranks.shared_memory import gather_rows

_sum_backward = torch.ops.aten.native_batch_norm_backward.default  # not looked up each time
_SUMS_ONLY = (False, True, True)  # the gradients of weight and bias, not that of the images


def normalize_over_ranks(
    images: Tensor, weight: Tensor, bias: Tensor, epsilon: float, over: Span
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalised ``images``, and the mean and the biased variance of each channel.

    The moments, (channels,), are those over the ranks of ``over.group``. Gradients flow through the
    first result only, also to the images of other ranks; it is shaped as ``images``, (batch,
    channels, height, width), which are float32 or float64, and lies in memory as they do.

    The two collectives, one in each direction, carry two numbers for each channel. PyTorch's
    kernels of batch norms sum over the maps, and ``torch.addcmul`` writes them: on a processor it
    takes a third of the time of the kernels that write. The maps of the mini ResNet-50 are so small
    that each further operation counts, also one on a number for each channel.
    """
    moments = gather_rows(_compute_moments(images.detach()), over.group)
    mean, variance = _combine_moments(moments, over.shares)
    normalized = _NormalizeByMoments.apply(images, weight, bias, mean, variance, epsilon, over)
    return normalized, _make_tensor(mean), _make_tensor(variance)


class _NormalizeByMoments(torch.autograd.Function):
    """Normalisation by the moments of the images of several ranks, with its gradient.

    What has a number for each channel is a NumPy array on processors, as from ``gather_rows``.
    """

    @staticmethod
    def forward(
        context: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Any,
        variance: Any,
        epsilon: float,
        over: Span,
    ) -> Tensor:
        inverse = (variance + epsilon) ** -0.5
        scale: Any = (weight.numpy() if images.is_cpu else weight) * inverse
        offset: Any = bias.numpy() if images.is_cpu else bias
        context.save_for_backward(images, weight)
        context.mean, context.variance, context.epsilon = mean, variance, epsilon
        context.inverse, context.scale, context.over = inverse, scale, over
        return torch.addcmul(_spread(offset - mean * scale), images, _spread(scale))

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = context.saved_tensors
        mean, scale, over = context.mean, context.scale, context.over
        # First as running moments, which a processor reads, then as saved ones for CUDA.
        tensors = map(_make_tensor, (mean, context.variance, mean, context.inverse))
        _, of_weight, of_bias = _sum_backward(
            gradient, images, weight, *tensors, False, context.epsilon, _SUMS_ONLY
        )
        of_weights, of_biases = gather_rows((of_weight, of_bias), over.group).sum(0)
        # The gradient as if the moments were constants, and the one through the moments.
        share = over.shares[dist.get_rank(over.group)] if over.shares else 1 / over.ranks
        through = scale * (-share * len(mean) / images.numel())
        slope = through * context.inverse * of_weights
        level = through * of_biases - slope * mean
        of_images = torch.addcmul(_spread(level), gradient, _spread(scale))
        of_images.addcmul_(images, _spread(slope))
        return of_images, of_weight, of_bias, None, None, None, None


def _make_tensor(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.from_numpy(values)


def _spread(values: Any) -> Tensor:
    """Return ``values``, (channels,), as (channels, 1, 1)."""
    return _make_tensor(values[:, None, None])


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
