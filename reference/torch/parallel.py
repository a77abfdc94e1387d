"""Data parallelism for large models, from PyTorch's own parts.

Gradients are averaged in buckets during the backward pass, flat or in two levels, and the update of
the weights may be sharded.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from reference.torch.distributed import TorchRanks, detect_lost_rank
from rules.errors import UserError

BUCKET_MIB = 25
ALL_REDUCE = ("flat", "two_level")
WEIGHT_UPDATE = ("replicated", "sharded")


def make_data_parallel(model: nn.Module, ranks: TorchRanks, all_reduce: str) -> nn.Module:
    """Return ``model`` wrapped so that the backward pass averages its gradients over all ranks.

    On one rank the model itself is returned. ``two_level`` reduces and scatters within each node,
    sums the parts between the nodes, and gathers within the node, so that only a share travels
    between nodes (Ying et al. 2018, arXiv:1811.06992, use rows and columns of a torus instead of
    nodes). Buffers stay as they are.

    Raises UserError where the ranks do not fill nodes evenly.
    """
    if ranks.world_size == 1:
        return model
    parameters = inspect.signature(DistributedDataParallel).parameters
    renamed = "forward_sync_buffers" in parameters  # in torch 2.13
    options: dict[str, Any] = {
        "forward_sync_buffers" if renamed else "broadcast_buffers": False,
        "bucket_cap_mb": BUCKET_MIB,
        "gradient_as_bucket_view": True,
    }
    with detect_lost_rank():
        parallel = DistributedDataParallel(model, **options)
    if all_reduce == "two_level":
        parallel.register_comm_hook(_make_node_groups(ranks), _average_in_two_levels)
    return parallel


class _NodeGroups:
    """The process groups of one rank: its own node, and one rank of each node."""

    def __init__(self, within: Any, between: Any) -> None:
        self.within, self.between = within, between
        self.size = dist.get_world_size(within)
        self.world_size = dist.get_world_size()


def _make_node_groups(ranks: TorchRanks) -> _NodeGroups:
    per_node = ranks.ranks_per_node
    if ranks.world_size % per_node:
        raise UserError(
            f"all_reduce=two_level: {ranks.world_size} ranks do not fill nodes of {per_node} "
            "evenly; start the same number on each node, or set all_reduce=flat"
        )
    with detect_lost_rank():
        shape = (ranks.world_size // per_node, per_node)
        mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("between", "within"))
    return _NodeGroups(mesh.get_group("within"), mesh.get_group("between"))


def _average_in_two_levels(
    nodes: _NodeGroups,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch requires the annotation
) -> torch.futures.Future[Tensor]:
    """Average a bucket over all ranks."""
    gradients = bucket.buffer()
    padding = -len(gradients) % nodes.size
    whole = nn.functional.pad(gradients, (0, padding)) / nodes.world_size
    part = whole.new_empty(len(whole) // nodes.size)
    dist.reduce_scatter_tensor(part, whole, group=nodes.within)
    dist.all_reduce(part, group=nodes.between)
    dist.all_gather_into_tensor(whole, part, group=nodes.within)
    mean: torch.futures.Future[Tensor] = torch.futures.Future()
    mean.set_result(whole[: len(gradients)])
    return mean


def make_sharded_optimizer(
    kind: type[Optimizer],
    groups: Sequence[Mapping[str, Any]],
    ranks: TorchRanks,
    weight_update: str,
    **values: Any,
) -> Optimizer:
    """Return an optimizer of type ``kind`` for the parameters in ``groups``.

    If the update is ``sharded``, each rank keeps the state of some parameters, updates these and
    receives the others from their ranks (weight-update sharding: Kumar et al. 2019,
    arXiv:1909.09756, section 2).
    """
    if weight_update == "replicated" or ranks.world_size == 1:
        return kind([dict(group) for group in groups], **values)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # slow to import, with warnings

    with detect_lost_rank():
        return ZeroRedundancyOptimizer([dict(group) for group in groups], kind, **values)


def clear_optimizer_state(optimizer: Optimizer) -> None:
    """Clear the state of ``optimizer``, as before its first step."""
    optimizer.state.clear()
    inner: Any = getattr(optimizer, "optim", optimizer)  # a sharded optimizer wraps another
    inner.state.clear()
