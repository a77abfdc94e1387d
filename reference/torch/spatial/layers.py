"""Convolutions and pooling on a part of a map: as on the whole map, but for rounding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.spatial.exchange import Axis, Exchange, Partition, split


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
    """A convolution of a part of a map."""

    windows: Windows

    def forward(self, images: Tensor) -> Tensor:
        """Map this rank's part (n, channels, y, x) of a map to its part of the result."""
        if not self.windows.is_active:
            return super().forward(images)
        return functional.conv2d(
            self.windows.collect(images),
            self.weight,
            self.bias,
            self.stride,
            self.windows.padding,
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


Size = Sequence[int]  # height, width


def convert_layer(layer: nn.Module, partition: Partition, before: Size, after: Size) -> bool:
    """Let a convolution or pooling compute on parts of maps; return False for another layer.

    The layer stays the same object with the same parameters. ``before`` and ``after`` are the sizes
    of the whole maps, (height, width).
    """
    kind = PARTITIONED.get(type(layer))
    if kind is None:
        return False
    assert isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d)
    kernel, stride, padding, dilation = (
        _pair(getattr(layer, name, 1)) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    is_exact = bool(getattr(layer, "ceil_mode", False))
    rows, columns = (
        Window(kernel[i], stride[i], padding[i], dilation[i], before[i], after[i], is_exact)
        for i in range(2)
    )
    object.__setattr__(layer, "__class__", kind)
    assert isinstance(layer, PartitionedConv2d | PartitionedMaxPool2d | PartitionedAvgPool2d)
    layer.windows = Windows.place(partition, (rows, columns))
    return True


PARTITIONED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: PartitionedConv2d,
    nn.MaxPool2d: PartitionedMaxPool2d,
    nn.AvgPool2d: PartitionedAvgPool2d,
}


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else value
