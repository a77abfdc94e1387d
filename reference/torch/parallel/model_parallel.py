"""Model parallelism: the ranks of a replica share one model, by its layers or by its matrices.

``pipeline`` gives each rank some of the layers (the module beside this one), and
``tensor_ranks`` a part of each large matrix (``tensor_parallel``). Where there are more ranks,
several replicas train on parts of the batch. The mathematics is that of one rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.execution import Parallelism
from cepheid.reference.torch.parallel.plan import STAGES, TENSOR_RANKS, Sharing
from cepheid.reference.torch.ranks.collectives import all_reduce, detect_lost_rank
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError

NEED_DEFAULT = ("all_reduce", "weight_update", "spatial_partitions")  # in a shared model
WHY_EAGER = "the parts of a model run eagerly"


def read_sharing(config: RunConfig) -> Sharing:
    """Return how the settings share a model; raise UserError where they contradict each other."""
    pipeline = config.execution.parallelism.pipeline
    tensor_ranks = config.execution.parallelism.tensor_ranks
    if pipeline.stages > 1 and tensor_ranks > 1:
        raise UserError(
            f"{STAGES}={pipeline} and {TENSOR_RANKS}={tensor_ranks}: a replica shares either "
            "layers or matrices; fix: leave one of them at 1"
        )
    return Sharing(pipeline.stages, tensor_ranks, pipeline.micro_batches, pipeline.schedule)


def prepare(config: RunConfig, sharing: Sharing) -> RunConfig:
    """Return ``config`` with the only execution that a shared model has in place of ``auto``.

    Raises UserError where the user has chosen another one.
    """
    if sharing.ranks == 1:
        return config
    execution = config.execution
    chosen = {"precision": execution.precision, "compile": execution.compile}
    refused = {"precision": ("fp16",), "compile": ("on",)}
    problems = [f"{key}={value}" for key, value in chosen.items() if value in refused[key]]
    asked, default = execution.parallelism, Parallelism()
    problems += [
        f"{key}={getattr(asked, key)}"
        for key in NEED_DEFAULT
        if getattr(asked, key) != getattr(default, key)
    ]
    if execution.micro_batch.isdecimal():
        problems.append(f"micro_batch={execution.micro_batch}")
    if problems:
        raise UserError(
            f"{sharing.setting}={sharing.ranks} is not possible together with "
            f"{' and '.join(problems)}; fix: leave {'it' if len(problems) == 1 else 'them'} out"
        )
    execution = execution.with_setting("compile", "off", WHY_EAGER)
    execution = execution.with_setting("micro_batch", "whole", WHY_EAGER)
    return replace(config, execution=execution)


class SharedModel:
    """This rank's part of a model that the ranks of a replica share, in training.

    ``model`` is the whole model, on every rank. Only ``gather_weights`` brings what other ranks
    have trained into it. ``mesh`` has two dimensions: the replicas and the ranks within a replica.
    """

    def __init__(self, model: nn.Module, ranks: TorchRanks) -> None:
        self.model, self.ranks = model, ranks
        with detect_lost_rank():
            shape, names = (ranks.replicas, ranks.partitions), ("across", "within")
            self.mesh = init_device_mesh(ranks.device.type, shape, mesh_dim_names=names)
        self.within, self.across = self.mesh.get_group("within"), self.mesh.get_group("across")

    @property
    def network(self) -> nn.Module:
        """What computes a loss in training."""
        return self.model

    def select(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return parameter groups of ``model`` with the parameters that this rank updates."""
        raise NotImplementedError

    def list_trained(self) -> list[nn.Parameter]:
        """Return the parameters that this rank updates."""
        raise NotImplementedError

    def share_gradients(self) -> None:
        """Average the gradients over the replicas, in one all-reduce."""
        gradients = [parameter.grad for parameter in self.list_trained()]
        _average([gradient for gradient in gradients if gradient is not None], self.across)

    def gather_weights(self) -> None:
        """Make ``model`` whole on every rank."""
        raise NotImplementedError

    def scatter_weights(self) -> None:
        """Train on from the weights of ``model``; gradients become None."""
        raise NotImplementedError

    def gather_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of this rank's optimizer completed to that of the whole model."""
        raise NotImplementedError

    def scatter_optimizer(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return this rank's part of the state of an optimizer of the whole model."""
        raise NotImplementedError


def _average(tensors: Sequence[Tensor], group: Any) -> None:
    """Replace every tensor, of any shape, by its mean over ``group``, in one all-reduce."""
    size = dist.get_world_size(group)
    if not tensors or size == 1:
        return
    flat = all_reduce(torch.cat([tensor.flatten() for tensor in tensors]), group)
    flat *= 1 / size
    for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(mean.view(tensor.shape))
