"""What kfac is compared with: kfac-pytorch, and the network in torch's default memory layout."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import convert_conv2d_weight_memory_format
from typing_extensions import override

from cepheid.benchmarks.kfac.task import WORKLOAD, Facts
from cepheid.reference.torch.broken import change_network
from cepheid.reference.torch.preconditioner import Preconditioner
from cepheid.reference.torch.workload import Network, Norms


class PeerPreconditioner(Preconditioner):
    """kfac-pytorch. Factors and inverses are computed at every step.

    Inverses are explicit, which is the faster of the peer's two ways on CPUs. The peer needs
    weights in torch's default memory layout and a process group.
    """

    def __init__(self, damping: float) -> None:
        self.damping = damping
        self.peer: Any = None

    @override
    def attach(self, trainer: Any) -> None:
        if self.peer is None:  # it cannot be removed
            trainer.model.to(memory_format=torch.contiguous_format)
            rate = trainer.optimizer.param_groups[0]["lr"]
            options = {"damping": self.damping, "lr": rate, "compute_method": "inverse"}
            self.peer = _make_peer(trainer.model, **options)

    @override
    def precondition(self, optimizer: torch.optim.Optimizer, scaler: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.grad.contiguous()
        self.peer.step()


def make_channels_first(shape: Facts, norms: Norms) -> nn.Module:
    """Return the network in torch's default memory layout; the task's own has channels last."""
    network = WORKLOAD.make_network(shape, norms)
    convert_conv2d_weight_memory_format(network, torch.contiguous_format)
    return network


def take_channels_first(network: Network) -> Network:
    """Return the network with images in torch's default memory layout."""
    return replace(network, call=lambda images: network.call(images.contiguous()))


PEER = WORKLOAD.vary(
    make_preconditioner=lambda shape, seat: PeerPreconditioner(shape.values.kfac_damping)
)
"""SGD on gradients that kfac-pytorch preconditions."""
CHANNELS_FIRST = change_network(
    WORKLOAD.vary(make_network=make_channels_first), take_channels_first
)
NETWORKS = {"channels first": CHANNELS_FIRST}
"""The networks that the ladder of costs.yaml names."""


def _make_peer(model: nn.Module, **options: Any) -> Any:
    """Return the peer's preconditioner, with factors and inverses of every step."""
    from kfac.preconditioner import KFACPreconditioner

    if not dist.is_initialized():
        store = dist.HashStore()  # type: ignore[attr-defined]  # no address is needed
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    return KFACPreconditioner(model, factor_update_steps=1, inv_update_steps=1, **options)
