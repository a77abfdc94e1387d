"""Batch normalisation over samples of several ranks, also on CPUs.

``torch.nn.SyncBatchNorm`` refuses CPU tensors.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.ranks.collectives import Span
from cepheid.reference.torch.ranks.group_moments import normalize_over_ranks
from cepheid.reference.torch.ranks.shared_memory import add, gather
from cepheid.rules.errors import UserError

Piece = TypeVar("Piece")


class GroupBatchNorm2d(nn.Module):
    """Batch normalisation over the global batch, on any device, with Keras' conventions.

    The sums are reduced over all ranks, so that one and N ranks agree at equal global batch size.
    As in Keras and unlike PyTorch, ``momentum`` is the share that the running statistics keep, and
    their variance is biased.
    """

    running_mean: Tensor
    running_variance: Tensor
    step_moments: tuple[Tensor, Tensor] | None = None  # in ``unite``
    seen: list[Tensor] | None = None  # moments of passes that end here

    def __init__(self, channels: int, epsilon: float, momentum: float) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        # Not a decorator: importing this module would then load the compiler, which is slow.
        self._compute_group_moments = torch.compiler.disable(_compute_group_moments)
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))

    def forward(self, images: Tensor) -> Tensor:
        """Normalise ``images``, (batch, channels, height, width), equally large on all ranks.

        The result is float32 and has the same shape.
        """
        images = images.float()
        scale, shift = self.scale_and_shift(images)
        return images * scale[:, None, None] + shift[:, None, None]

    def scale_and_shift(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factor and the summand that normalise each channel, both (channels,).

        ``images`` are float32, (batch, channels, height, width). In training the running statistics
        are updated.
        """
        if self.seen is not None:
            self._end_pass(images, self.seen)
        if not self.training:
            mean, variance = self.running_mean, self.running_variance
        elif self.step_moments is not None:
            mean, variance = self.step_moments
        elif dist.is_initialized() and dist.get_world_size() > 1:
            mean, variance = self._compute_group_moments(images)
            self._update_running_statistics(mean, variance)
        else:
            variance, mean = torch.var_mean(images, dim=(0, 2, 3), correction=0)
            self._update_running_statistics(mean, variance)
        scale = self.weight * torch.rsqrt(variance + self.epsilon)
        return scale, self.bias - mean * scale

    @contextmanager
    def unite(self, passes: Iterable[Callable[[], object]], is_alone: bool) -> Iterator[None]:
        """Normalise by the moments of several passes together, over all ranks, in the context.

        ``passes`` run the network in training on equally many samples each; they end at this norm.
        So what it normalises must not depend on any parameter: a norm of the network's inputs.
        With ``is_alone`` the moments are those of this rank. Raises UserError for another norm.
        """
        self.seen = []
        try:
            for run in passes:
                with suppress(_PassEndedError):
                    run()
            moments = torch.stack(self.seen)
        finally:
            self.seen = None
        if dist.is_initialized() and dist.get_world_size() > 1 and not is_alone:
            moments = gather(moments).flatten(0, 1)
        mean, variance = _combine_moments(moments)
        self._update_running_statistics(mean, variance)
        self.step_moments = mean, variance
        try:
            yield
        finally:
            self.step_moments = None

    def _end_pass(self, images: Tensor, seen: list[Tensor]) -> None:
        if images.requires_grad:
            raise UserError(
                "micro_batch: a batch norm over the global batch normalises what parameters "
                "compute, so its gradients need the whole batch at once; fix: set micro_batch="
                "whole, or use SpanBatchNorm2d with a span of fewer samples"
            )
        variance, mean = torch.var_mean(images, dim=(0, 2, 3), correction=0)
        seen.append(torch.stack((mean, variance)))
        raise _PassEndedError

    @torch.no_grad()
    def _update_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        self.running_mean.lerp_(mean, 1 - self.momentum)
        self.running_variance.lerp_(variance, 1 - self.momentum)


class _PassEndedError(Exception):
    """A pass of ``GroupBatchNorm2d.unite`` has reached the norm."""


class SpanBatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation over each span of consecutive samples, with PyTorch's conventions.

    The statistics cover a part of a rank's samples, all of them, or those of several ranks
    (distributed batch normalisation: Ying et al. 2018, arXiv:1811.06992, section 3.4). The running
    statistics of a rank are the mean over its own groups. ``TorchRanks.average`` turns them into
    the mean over all groups, at any time, because they are linear in each group.

    ``batch_moments`` is the mean and the variance of each of this rank's groups in the last
    training batch, (groups, channels) each; None where one group is this rank's batch. With
    ``is_pipelined`` a forward pass may come before the backward pass of the one before it.
    """

    batch_moments: tuple[Tensor, Tensor] | None = None
    is_pipelined = False

    def __init__(self, channels: int, over: Span, epsilon: float, momentum: float) -> None:
        super().__init__(channels, eps=epsilon, momentum=momentum)
        self.normalize_over(over)

    @classmethod
    def convert(cls, norm: nn.BatchNorm2d) -> "SpanBatchNorm2d":
        """Return ``norm``, the same object, as a norm over its rank's batch."""
        if type(norm) is nn.BatchNorm2d:
            norm.__class__ = cls
            assert isinstance(norm, cls)
            norm.normalize_over(Span())
        assert isinstance(norm, cls)
        return norm

    def normalize_over(self, over: Span) -> None:
        """Normalise over another span from now on."""
        self.over = over
        # Not a decorator: importing this module would then load the compiler, which is slow.
        self._normalize_part = torch.compiler.disable(normalize_over_ranks)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise ``images``, (share of this rank, channels, height, width), in their type."""
        assert self.running_mean is not None
        assert self.running_var is not None
        if not self.training:
            return self._normalize(images, self.running_mean, self.running_var, training=False)
        if self.over.group is not None:
            return self._normalize_over_ranks(images)
        # A backward pass refuses running statistics that have changed since its forward pass.
        if self.over.local_groups == 1 and not self.is_pipelined:
            self.batch_moments = None
            return self._normalize(images, self.running_mean, self.running_var, self.momentum)
        parts, means, variances = [], [], []
        for part in images.chunk(self.over.local_groups):
            mean, variance = torch.zeros_like(self.running_mean), torch.ones_like(self.running_var)
            # With a momentum of 1 the running statistics are the group's own.
            parts.append(self._normalize(part, mean, variance, 1.0))
            means.append(mean)
            variances.append(variance)
        mean, variance = torch.stack(means), torch.stack(variances)
        count = images.numel() // images.shape[1] // self.over.local_groups
        self.batch_moments = mean, variance * ((count - 1) / count)
        self._update_running_statistics(mean.mean(0), variance.mean(0))
        return torch.cat(parts)

    def _normalize(
        self,
        images: Tensor,
        mean: Tensor,
        variance: Tensor,
        momentum: float | None = 0.0,
        training: bool = True,
    ) -> Tensor:
        assert momentum is not None
        return functional.batch_norm(
            images, mean, variance, self.weight, self.bias, training, momentum, self.eps
        )

    def _normalize_over_ranks(self, images: Tensor) -> Tensor:
        """Normalise in float32 or better and return the type of ``images``.

        One group takes few operations, because each of them counts where maps are small.
        """
        exact = images.to(torch.promote_types(images.dtype, torch.float32))
        groups, over = self.over.local_groups, self.over
        weight, bias, count = self.weight, self.bias, exact.numel() // exact.shape[1] // groups
        if groups == 1:
            whole, mean, variance = self._normalize_part(exact, weight, bias, self.eps, over)
            moments = mean[None], variance[None]
        else:  # The gradient of a chunk is a copy, also if it is the whole.
            parts = [
                self._normalize_part(part, weight, bias, self.eps, over)
                for part in exact.chunk(groups)
            ]
            normalized, means, variances = zip(*parts, strict=True)
            whole, moments = torch.cat(normalized), (torch.stack(means), torch.stack(variances))
            mean, variance = (each.mean(0) for each in moments)
        object.__setattr__(self, "batch_moments", moments)  # that of a module takes far longer
        count = over.count_values(count)
        self._update_running_statistics(mean, variance * (count / max(1, count - 1)))
        return whole.to(images.dtype)

    def _update_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        """Update them by moments without gradients, for which no gradient mode need be set."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


def average_running_statistics(
    model: nn.Module, pieces: Iterable[Piece]
) -> Generator[Piece, None, None]:
    """Yield the pieces of a step, all equally large, one after the other.

    The running statistics of all ``SpanBatchNorm2d`` of ``model`` take each piece as the first one;
    afterwards they are the mean over the pieces, as after one step on all of them.
    """
    norms = [module for module in model.modules() if isinstance(module, SpanBatchNorm2d)]
    found = [each for norm in norms for each in (norm.running_mean, norm.running_var)]
    statistics = [each for each in found if each is not None]
    before = [each.clone() for each in statistics]
    totals = [torch.zeros_like(each) for each in statistics]
    count = 0
    for piece in pieces:
        torch._foreach_copy_(statistics, before)
        yield piece
        torch._foreach_add_(totals, statistics)
        count += 1
    torch._foreach_copy_(statistics, torch._foreach_div(totals, count))


def _compute_group_moments(images: Tensor, group: Any = None) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance per channel over all ranks, or those of ``group``.

    Gradients flow through both, (channels,) each. Each rank sends its own moments, so that one
    collective suffices, and the same number backwards.
    """
    mean = images.mean((0, 2, 3))
    # Detached, because the deviations of a rank sum up to 0, and so does what flows through it.
    variance = (images - mean.detach()[:, None, None]).square().mean((0, 2, 3))
    return _combine_moments(gather_over_ranks(torch.stack((mean, variance)), group))


def _combine_moments(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of equally large parts, (parts, 2, channels), together."""
    means, variances = moments.unbind(1)
    total = means.mean(0)
    return total, variances.mean(0) + (means - total).square().mean(0)


def gather_over_ranks(values: Tensor, group: Any = None) -> Tensor:
    """Return the ``values`` of all ranks, (ranks, …); their gradients are summed over the ranks."""
    return _GatherOverRanks.apply(values, group)


class _GatherOverRanks(torch.autograd.Function):
    """The tensors of all ranks, each of which gets the sum of the gradients on all ranks.

    torch's own differentiable collectives are being renamed between the versions we support.
    """

    @staticmethod
    def forward(context: Any, values: Tensor, group: Any) -> Tensor:
        context.group = group
        return gather(values, group)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return add(gradient, context.group)[dist.get_rank(context.group)], None
