"""What kfac is compared with: kfac-pytorch, and the network in torch's default memory layout."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import convert_conv2d_weight_memory_format
from typing_extensions import override

from cepheid.benchmarks.kfac.task import WORKLOAD, Facts
from cepheid.reference.torch.broken import change_network
from cepheid.reference.torch.preconditioner import Preconditioner
from cepheid.reference.torch.workload import Network, Norms
from cepheid.second_order import KFAC, Options

DAMPING = 1e-2
SAMPLES, FEATURES, HIDDEN, CLASSES = 64, 48, 32, 10
NEW_ONLY = 1e-12  # the share of the old factor, which the peer starts as the identity
UNCLIPPED = 1e30


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


def compare_directions() -> float:
    """Return the relative distance of the peer's direction from ours, for two linear layers.

    Both decompose their factors: with explicit inverses the peer adds λ to each of the two factors,
    which is another approximation than √λ. Its B is that of the gradients of the mean loss, our B
    that of the samples' own losses, n² times as large; so its λ is that much smaller, and its
    direction that much larger. Convolutions are not compared: the peer divides their factors by
    powers of the number of positions, so that λ would mean something else in each layer.
    """
    model, inputs, labels = _make_problem()
    ours = KFAC(model, Options(damping=DAMPING, average_decay=0.0, inverse="eigen"))
    own = _precondition(model, inputs, labels, ours)
    ours.remove()
    model, inputs, labels = _make_problem()
    was_started = dist.is_initialized()
    peer = _make_peer(
        model,
        damping=DAMPING / SAMPLES**2,
        factor_decay=NEW_ONLY,
        kl_clip=UNCLIPPED,
        compute_method="eigen",
    )
    other = _precondition(model, inputs, labels, peer) / SAMPLES**2
    if not was_started:
        dist.destroy_process_group()
    return float((other - own).norm() / own.norm())


def _make_problem() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
    return model, inputs, torch.randint(CLASSES, (SAMPLES,), generator=generator)


def _precondition(model: nn.Module, inputs: Tensor, labels: Tensor, preconditioner: Any) -> Tensor:
    cross_entropy(model(inputs), labels).backward()
    preconditioner.step()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
