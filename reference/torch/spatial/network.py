"""The conversion of a network, so that several ranks share each of its training images."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from cepheid.reference.run.execution import Grid
from cepheid.reference.torch.batch_norm import SpanBatchNorm2d, gather_over_ranks
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.spatial.exchange import Axis, Exchange, Partition, measure_part, split
from cepheid.reference.torch.spatial.layers import (
    PARTITIONED,
    Size,
    Sizes,
    convert_layer,
    key_by_part,
    pick,
)
from cepheid.rules.errors import UserError

CONVERTED = (*PARTITIONED, nn.BatchNorm2d, SpanBatchNorm2d, nn.Identity)
MANY_SIZES = nn.Conv2d, nn.Identity  # layers of these kinds may see maps of several sizes
aten = torch.ops.aten
MEAN = aten.mean.dim
HARMLESS = {aten.detach.default, aten.clone.default, aten._to_copy.default, aten.alias.default}


def partition_network(
    network: nn.Module,
    ranks: TorchRanks,
    grid: Grid,
    shape: Sequence[int],
    averaged: Sequence[str] = (),
    gathered: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> nn.Module:
    """Let ``network`` share its training images with the other ranks of its replica; return it.

    In training mode the network takes the whole images, (n, *shape) with ``shape`` (channels,
    height, width), the same on all ranks of a replica, and cuts out this rank's part. Its result is
    that of one rank, but for rounding, on all of them. So are the weights' gradients after they are
    averaged over all ranks of the run: each rank of a replica adds to the same loss, which all of
    them compute, so that the sum over the replica counts it as often as it has ranks. In evaluation
    mode the network is as before, and ranks may evaluate different images.

    The layers keep names and parameters. Convolutions and pooling exchange the rows that they
    need besides their own; batch norms use the moments of the whole maps, their spans counted in
    replicas (``TorchRanks.make_span``). A map with fewer rows than parts is
    gathered, and all ranks compute it. ``averaged`` names the layers whose input is the mean over
    the last map: it becomes that over the whole map. ``gathered`` names the layers whose maps are
    the result: all ranks get them whole. Outside of these layers all that is done to maps must be
    elementwise.

    All ranks must call it. Raises UserError if the images are too small, or for a network that does
    something else with maps.
    """
    if grid.parts == 1:
        return network
    grid.check(*shape[1:])
    trace = _trace(network, shape, bool(averaged))
    _refuse_like_parts(grid, trace.sizes)
    partition = Partition(grid, ranks)
    for name, sizes in trace.sizes.items():
        layer = network.get_submodule(name)
        if not convert_layer(layer, partition, sizes) and isinstance(layer, nn.BatchNorm2d):
            _normalize_whole_maps(SpanBatchNorm2d.convert(layer), partition, sizes[0][0])
    _cut_images(network, partition, shape)
    for name in averaged:
        share = partition.compute_shares(*trace.averaged)[partition.place]
        _average_over_parts(network.get_submodule(name), partition, share)
    for name, takers in gathered.items():
        _gather_maps(network.get_submodule(name), partition, trace.sizes[name], takers)
    network.__dict__["partition"] = partition  # which is no module
    return network


def _refuse_like_parts(grid: Grid, found: Mapping[str, Sizes]) -> None:
    """Raise UserError where a layer could not tell maps apart by the sizes of their parts."""
    for name, sizes in found.items():
        for place, of_maps in itertools.product(range(grid.parts), zip(*sizes, strict=True)):
            parts = {measure_part(grid, place, size) for size in of_maps}
            if len(parts) < len(set(of_maps)):
                raise UserError(
                    f"spatial_partitions: the layer {name} sees maps of different sizes whose "
                    f"parts are equally large; fix: make a layer for each size, which may share "
                    "its weights"
                )


def _normalize_whole_maps(norm: SpanBatchNorm2d, partition: Partition, size: Size) -> None:
    """Let ``norm`` weigh the moments of all parts of maps of ``size``, (height, width)."""
    over = norm.over if norm.over.group else replace(norm.over, ranks=partition.grid.parts)
    replicas = over.ranks // partition.grid.parts
    shares = [share / replicas for share in partition.compute_shares(*size)]
    norm.normalize_over(
        replace(
            over,
            group=over.group or partition.group,
            shares=tuple(shares) * replicas,
            copies=partition.count_copies(*size),
        )
    )


def _cut_images(network: nn.Module, partition: Partition, shape: Sequence[int]) -> None:
    """Let ``network`` cut out this rank's part of its images, (n, *shape), in training mode."""
    rows, columns = (
        split(size, axis.parts)[axis.place]
        for size, axis in zip(shape[1:], partition.axes, strict=True)
    )

    def cut(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        partition.is_active = module.training
        if not module.training:
            return inputs
        images, *others = inputs
        assert tuple(images.shape[1:]) == tuple(shape), "the network is partitioned for other sizes"
        part = images[:, :, rows.start : rows.stop, columns.start : columns.stop]
        return (part, *others)

    network.register_forward_pre_hook(cut)


def _average_over_parts(layer: nn.Module, partition: Partition, share: float) -> None:
    """Replace the input of ``layer``, a mean over a part, by the mean over the whole map."""

    def average(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if not partition.is_active:
            return inputs
        (mean,) = inputs
        return (gather_over_ranks(mean * share, partition.group).sum(0),)

    layer.register_forward_pre_hook(torch.compiler.disable(average))


def _gather_maps(
    layer: nn.Module, partition: Partition, sizes: Sizes, takers: Sequence[int]
) -> None:
    """Replace the maps that ``layer`` makes, of which this rank has parts, by whole ones.

    ``sizes`` are those of the maps before and after it, (height, width). The ``takers`` among the
    ranks of the replica get the whole maps; where columns are cut too, all do.
    """
    is_whole = partition.grid.columns > 1

    def exchange(axis: Axis, length: int) -> Exchange:
        held = split(length, axis.parts)
        needed = [
            range(length) if is_whole or part in takers else held[part]
            for part in range(axis.parts)
        ]
        return Exchange(axis, length, held, tuple(needed))

    exchanges = {
        after: [
            exchange(axis, length)
            for axis, length in zip(partition.axes, after, strict=True)
            if 1 < axis.parts <= length
        ]
        for _, after in sizes
    }
    by_part: Any = key_by_part(partition, exchanges)
    by_part = by_part if len(sizes) > 1 else exchanges[sizes[0][1]]

    def gather(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
        for each in pick(by_part, output) if partition.is_active else ():
            output = each.collect(output, 0.0)
        return output

    layer.register_forward_hook(torch.compiler.disable(gather))


@dataclass
class _Trace(TorchDispatchMode):
    """The sizes of the maps before and after each layer, and of the map that is averaged."""

    has_averaged: bool
    sizes: dict[str, list[tuple[Size, Size]]] = field(default_factory=dict)
    averaged: Size = ()
    depth: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def watch(self, name: str, layer: nn.Module) -> list[Any]:
        """Note the sizes when ``layer`` computes; return the handles of its hooks."""

        def enter(*_: Any) -> None:
            self.depth += 1

        def leave(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.depth -= 1
            seen = tuple(inputs[0].shape[2:]), tuple(output.shape[2:])
            sizes = self.sizes.setdefault(name, [seen])
            if seen in sizes:
                return
            sizes.append(seen)
            if not isinstance(layer, MANY_SIZES):
                raise UserError(
                    f"spatial_partitions: the layer {name} sees maps of different sizes; "
                    "make a layer for each size, which may share its weights"
                )

        return [layer.register_forward_pre_hook(enter), layer.register_forward_hook(leave)]

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        """Refuse what is done to maps outside of the layers, unless it is elementwise."""
        maps = [a for a in arguments if isinstance(a, Tensor) and a.dim() == 4]
        if self.depth == 0 and maps:
            is_over_map = function is MEAN and sorted(dim % 4 for dim in arguments[1]) == [2, 3]
            if self.has_averaged and is_over_map:
                self.averaged = maps[0].shape[2:]
            elif torch.Tag.pointwise not in function.tags and function not in HARMLESS:
                raise UserError(
                    f"spatial_partitions: the network applies {function} to maps outside of the "
                    "layers that can be partitioned, which are Conv2d, MaxPool2d, AvgPool2d, "
                    "BatchNorm2d, GroupNorm and Enlarge"
                )
        return function(*arguments, **(named or {}))


def _trace(network: nn.Module, shape: Sequence[int], has_averaged: bool) -> _Trace:
    """Compute one image without values, and note what ``network`` does to maps."""
    trace = _Trace(has_averaged)
    modes = [(module, module.training) for module in network.modules()]
    handles = [
        handle
        for name, module in network.named_modules()
        if type(module) in CONVERTED
        for handle in trace.watch(name, module)
    ]
    values = itertools.chain(network.named_parameters(), network.named_buffers())
    try:
        network.eval()  # no statistics, which several ranks would have to compute together
        state = {name: value.to("meta") for name, value in values}
        dtype = next(network.parameters()).dtype
        image = torch.empty(1, *shape, device="meta", dtype=dtype)
        with torch.no_grad(), trace:
            functional_call(network, state, (image,))
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode
    return trace
