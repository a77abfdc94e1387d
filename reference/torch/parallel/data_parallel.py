"""Data parallelism for large models, from PyTorch's own parts.

Gradients are averaged in buckets during the backward pass, over all ranks at once or over rows and
columns of them.
"""

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cepheid.reference.torch.parallel.mesh import RankMesh, average_bucket
from cepheid.reference.torch.ranks import shared_memory
from cepheid.reference.torch.ranks.collectives import detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks

BUCKET_MIB = 25


def make_data_parallel(
    model: nn.Module, ranks: TorchRanks, shape: tuple[int, int], bucket_mib: float = BUCKET_MIB
) -> nn.Module:
    """Return ``model`` wrapped so that the backward pass averages its gradients over all ranks.

    On one rank the model itself is returned. If ``shape``, rows and columns, has several rows, the
    ranks of each row sum and scatter the gradients, the parts are summed between the rows, and
    gathered in each row. Ranks on one machine add in memory that they share, if they have no GPUs.
    Buffers stay as they are.
    """
    if ranks.world_size == 1:
        return model
    parameters = inspect.signature(DistributedDataParallel).parameters
    renamed = "forward_sync_buffers" in parameters  # in torch 2.13
    options: dict[str, Any] = {
        "forward_sync_buffers" if renamed else "broadcast_buffers": False,
        "bucket_cap_mb": bucket_mib,
        "gradient_as_bucket_view": True,
    }
    with detect_lost_rank():
        parallel = DistributedDataParallel(model, **options)
    if shape[0] > 1:
        parallel.register_comm_hook(RankMesh(ranks, shape), average_bucket)
    elif ranks.device.type == "cpu":
        parallel.register_comm_hook(ranks.world_size, shared_memory.average_bucket)
    return parallel
