"""Layers on a part of a map, which compute as on the whole map, but for rounding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.batch_norm import gather_over_ranks
from cepheid.reference.torch.parallel.plan import Enlarge
from cepheid.reference.torch.spatial.exchange import (
    Axis,
    Exchange,
    Partition,
    measure_part,
    split,
)

Size = Sequence[int]  # height, width
Sizes = Sequence[tuple[Size, Size]]  # of the whole maps before and after a layer
Found = TypeVar("Found")


@dataclass(frozen=True)
class Window:
    """The window of a layer along one axis, from ``size`` inputs to ``outputs``."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    size: int
    outputs: int
    is_exact: bool  # a layer that rounds sizes up must not see what its outputs do not need

    def make_exchange(self, axis: Axis) -> Exchange | None:
        """Return what the parts of ``axis`` exchange before the layer; None if they need not."""
        held, made = split(self.size, axis.parts), split(self.outputs, axis.parts)
        if axis.parts == 1 or max(self.size, self.outputs) < axis.parts:
            return None
        needed = tuple(self._find_needed(*pair) for pair in zip(held, made, strict=True))
        return None if needed == held else Exchange(axis, self.size, held, needed)

    def _find_needed(self, held: range, made: range) -> range:
        start = made.start * self.stride - self.padding
        reach = self.dilation * (self.kernel - 1) + 1
        stop = (made.stop - 1) * self.stride - self.padding + reach
        # What does not complete another window may stay, and need not be cut off.
        if not self.is_exact and stop <= held.stop < stop + self.stride:
            stop = held.stop
        return range(start, stop)

    def count_covered(self, made: range, with_padding: bool) -> list[int]:
        """Return the number of values in the window of each output, by PyTorch's convention."""
        beyond = self.padding if with_padding else 0
        starts = [output * self.stride - self.padding for output in made]
        return [
            min(start + self.kernel, self.size + beyond) - max(start, -beyond) for start in starts
        ]


@dataclass(frozen=True)
class Windows:
    """The windows of a layer along both axes of a map, and what is exchanged before it."""

    partition: Partition
    along: tuple[Window, Window]
    exchanges: tuple[Exchange | None, Exchange | None]
    # The compiler breaks off here. Not a decorator: importing this would then load it, slowly.
    _collect: Callable[..., Tensor] = field(
        default_factory=lambda: torch.compiler.disable(_collect_along), repr=False
    )

    @classmethod
    def place(cls, partition: Partition, along: tuple[Window, Window]) -> "Windows":
        """Return the windows with their exchanges on the axes of ``partition``."""
        rows, columns = (
            window.make_exchange(axis) for window, axis in zip(along, partition.axes, strict=True)
        )
        return cls(partition, along, (rows, columns))

    @property
    def is_active(self) -> bool:
        """Whether the layer computes on this rank's part of a map."""
        return self.partition.is_active

    @property
    def padding(self) -> tuple[int, int]:
        """The padding that is left to the layer, because the exchange has not added it."""
        rows, columns = (
            0 if exchange else window.padding
            for window, exchange in zip(self.along, self.exchanges, strict=True)
        )
        return rows, columns

    def collect(self, images: Tensor, fill: float = 0.0) -> Tensor:
        """Return ``images``, (n, channels, height, width), with what the windows reach besides."""
        return self._collect(self.exchanges, images, fill) if any(self.exchanges) else images

    def count_covered(self, with_padding: bool) -> tuple[list[int], list[int]]:
        """Return the number of values in the windows of this rank's outputs, along both axes."""
        rows, columns = (
            window.count_covered(split(window.outputs, axis.parts)[axis.place], with_padding)
            for window, axis in zip(self.along, self.partition.axes, strict=True)
        )
        return rows, columns


def _collect_along(exchanges: Sequence[Exchange | None], images: Tensor, fill: float) -> Tensor:
    for exchange in exchanges:
        if exchange:
            images = exchange.collect(images, fill)
    return images


class PartitionedConv2d(nn.Conv2d):
    """A convolution of a part of a map; ``windows`` may differ by the size of the part."""

    partition: Partition
    windows: "Windows | Mapping[tuple[int, ...], Windows]"

    def forward(self, images: Tensor) -> Tensor:
        """Map this rank's part (n, channels, y, x) of a map to its part of the result."""
        if not self.partition.is_active:
            return super().forward(images)
        windows = pick(self.windows, images)
        return functional.conv2d(
            windows.collect(images),
            self.weight,
            self.bias,
            self.stride,
            windows.padding,
            self.dilation,
            self.groups,
        )


class PartitionedMaxPool2d(nn.MaxPool2d):
    """The largest value in each window on a part of a map."""

    windows: Windows

    def forward(self, images: Tensor) -> Tensor:
        """Map this rank's part (n, channels, y, x) of a map to its part of the result."""
        if not self.windows.is_active:
            return super().forward(images)
        return functional.max_pool2d(
            self.windows.collect(images, -torch.inf),
            self.kernel_size,
            self.stride,
            self.windows.padding,
            self.dilation,
            self.ceil_mode,
        )


class PartitionedAvgPool2d(nn.AvgPool2d):
    """The mean over each window on a part of a map."""

    windows: Windows

    def forward(self, images: Tensor) -> Tensor:
        """Map this rank's part (n, channels, y, x) of a map to its part of the result."""
        if not self.windows.is_active:
            return super().forward(images)
        total = functional.avg_pool2d(
            self.windows.collect(images),
            self.kernel_size,
            self.stride,
            self.windows.padding,
            self.ceil_mode,
            divisor_override=1,
        )
        if self.divisor_override:
            return total / self.divisor_override
        rows, columns = map(total.new_tensor, self.windows.count_covered(self.count_include_pad))
        return total / (rows[:, None] * columns)


class PartitionedEnlarge(Enlarge):
    """The nearest values of a coarse map, in this rank's part of a finer one.

    ``places`` are those of the nearest values among what is collected, along both axes.
    """

    partition: Partition
    exchanges: Sequence[Exchange | None]
    places: Sequence[Sequence[int]]

    def forward(self, coarse: Tensor, like: Tensor) -> Tensor:
        """Map this rank's part (n, channels, y, x) of a map to its part of the larger one."""
        if not self.partition.is_active:
            return super().forward(coarse, like)
        if any(self.exchanges):
            coarse = torch.compiler.disable(_collect_along)(self.exchanges, coarse, 0.0)
        for dim, places in enumerate(self.places, 2):
            coarse = coarse.index_select(dim, torch.tensor(places, device=coarse.device))
        return coarse


class PartitionedGroupNorm(nn.GroupNorm):
    """A group norm of a part of a map, by the moments of the whole one.

    ``shares`` are the weights of the replica's ranks in a mean over the map.
    """

    partition: Partition
    shares: Sequence[float]

    def forward(self, images: Tensor) -> Tensor:
        """Normalise this rank's part (n, channels, y, x) in its type."""
        if not self.partition.is_active:
            return super().forward(images)
        exact = images.to(torch.promote_types(images.dtype, torch.float32))
        grouped = exact.unflatten(1, (self.num_groups, -1))
        own = torch.stack(torch.var_mean(grouped, (2, 3, 4), correction=0))
        gather = torch.compiler.disable(gather_over_ranks)
        variances, means = gather(own, self.partition.group).unbind(1)
        shares = own.new_tensor(self.shares)[:, None, None]
        mean = (shares * means).sum(0)
        variance = (shares * (variances + (means - mean).square())).sum(0)
        mean, scale = (
            each[..., None, None, None] for each in (mean, (variance + self.eps).rsqrt())
        )
        normal = ((grouped - mean) * scale).flatten(1, 2)
        weight, bias = self.weight[:, None, None], self.bias[:, None, None]
        return (normal * weight + bias).to(images.dtype)


def convert_layer(layer: nn.Module, partition: Partition, sizes: Sizes) -> bool:
    """Let a layer compute on parts of maps; return False for one of another kind.

    It stays the same object with the same parameters. ``sizes`` are those of the whole maps before
    and after it, (height, width) each; a convolution may have several.
    """
    if type(layer) not in PARTITIONED:
        return False
    object.__setattr__(layer, "__class__", PARTITIONED[type(layer)])
    any_layer: Any = layer
    any_layer.partition = partition
    (before, after), *others = sizes
    if isinstance(layer, PartitionedGroupNorm):
        layer.shares = partition.compute_shares(*before)
    elif isinstance(layer, PartitionedEnlarge):
        found = zip(partition.axes, before, after, strict=True)
        layer.exchanges, layer.places = zip(*(_find_nearest(*each) for each in found), strict=True)
    else:
        windows = {size: _place_windows(layer, partition, *size) for size in sizes}
        parts = {size: each for (size, _), each in windows.items()}
        any_layer.windows = key_by_part(partition, parts) if others else windows[before, after]
    return True


def _place_windows(layer: Any, partition: Partition, before: Size, after: Size) -> Windows:
    """Return the windows of a convolution or pooling on a map."""
    kernel, stride, padding, dilation = (
        _pair(getattr(layer, name, 1)) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    is_exact = bool(getattr(layer, "ceil_mode", False))
    rows, columns = (
        Window(kernel[i], stride[i], padding[i], dilation[i], before[i], after[i], is_exact)
        for i in range(2)
    )
    return Windows.place(partition, (rows, columns))


def _find_nearest(axis: Axis, size: int, outputs: int) -> tuple[Exchange | None, Sequence[int]]:
    """Return what the parts of ``axis`` exchange to enlarge a map, and this part's places in it."""
    held, made = split(size, axis.parts), split(outputs, axis.parts)
    nearest = [[place * size // outputs for place in part] for part in made]
    needed = tuple(range(each[0], each[-1] + 1) for each in nearest)
    first = needed[axis.place].start
    exchange = None if needed == held else Exchange(axis, size, held, needed)
    return exchange, [place - first for place in nearest[axis.place]]


def key_by_part(partition: Partition, found: Mapping[Size, Found]) -> Mapping[Size, Found]:
    """Return what was found for sizes of whole maps by the sizes of this rank's parts of them."""
    grid, place = partition.grid, partition.place
    return {measure_part(grid, place, size): each for size, each in found.items()}


def pick(found: Found | Mapping[tuple[int, ...], Found], images: Tensor) -> Found:
    """Return what belongs to ``images``, (n, channels, y, x), by the size of this rank's part."""
    return found[tuple(images.shape[2:])] if isinstance(found, Mapping) else found


PARTITIONED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: PartitionedConv2d,
    nn.MaxPool2d: PartitionedMaxPool2d,
    nn.AvgPool2d: PartitionedAvgPool2d,
    nn.GroupNorm: PartitionedGroupNorm,
    Enlarge: PartitionedEnlarge,
}


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value
