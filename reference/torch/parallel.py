"""Data parallelism for large models: gradients are averaged in buckets while the backward pass
still runs, flat or in two levels, and the update may be shared out. PyTorch's own, put together."""

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


def data_parallel(model: nn.Module, ranks: TorchRanks, all_reduce: str) -> nn.Module:
    """``model`` with gradients that are means over all ranks once the backward pass is over; itself
    where there is one rank.

    ``two_level`` reduces and scatters within each node, then sums the parts between the nodes, then
    gathers within the node: between nodes travels a share only (Ying et al. 2018,
    arXiv:1811.06992, has rows and columns of a torus for nodes). Buffers are left alone.

    Raises UserError where the ranks do not fill nodes evenly.
    """
    if ranks.world_size == 1:
        return model
    known = inspect.signature(DistributedDataParallel).parameters
    renamed = "forward_sync_buffers" in known  # in torch 2.13
    options: dict[str, Any] = {
        "forward_sync_buffers" if renamed else "broadcast_buffers": False,
        "bucket_cap_mb": BUCKET_MIB,
        "gradient_as_bucket_view": True,
    }
    with detect_lost_rank():
        parallel = DistributedDataParallel(model, **options)
    if all_reduce == "two_level":
        parallel.register_comm_hook(_nodes(ranks), _two_level_mean)
    return parallel


class _Nodes:
    """The process groups of one rank: those of its node, and its fellows, one of each node."""

    def __init__(self, within: Any, between: Any) -> None:
        self.within, self.between = within, between
        self.size = dist.get_world_size(within)
        self.world_size = dist.get_world_size()


def _nodes(ranks: TorchRanks) -> _Nodes:
    per_node = ranks.ranks_per_node
    if ranks.world_size % per_node:
        raise UserError(
            f"all_reduce=two_level: {ranks.world_size} ranks do not fill nodes of {per_node} "
            "evenly; start as many on each node, or leave it flat"
        )
    with detect_lost_rank():
        shape = (ranks.world_size // per_node, per_node)
        mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=("between", "within"))
    return _Nodes(mesh.get_group("within"), mesh.get_group("between"))


def _two_level_mean(
    nodes: _Nodes,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # torch insists on it
) -> torch.futures.Future[Tensor]:
    """The mean of a bucket over all ranks."""
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
    """An optimizer of all parameters in ``groups``; where the update is ``sharded`` each rank keeps
    the state of some of them, updates these and gets the others from their ranks (weight-update
    sharding: Kumar et al. 2019, arXiv:1909.09756, section 2)."""
    if weight_update == "replicated" or ranks.world_size == 1:
        return kind([dict(group) for group in groups], **values)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # it loads much, and warns

    with detect_lost_rank():
        return ZeroRedundancyOptimizer([dict(group) for group in groups], kind, **values)


def clear_optimizer_state(optimizer: Optimizer) -> None:
    """As if it had taken none yet."""
    optimizer.state.clear()
    inner: Any = getattr(optimizer, "optim", optimizer)  # of one whose update is sharded
    inner.state.clear()
