"""Stale gradients: asynchronous SGD with a parameter server, simulated so that a seed repeats it.

``delay`` + 1 workers take turns at a server that holds the weights. Each fetches the weights,
computes a gradient and sends it. Meanwhile the others have changed the weights ``delay`` times, so
the server applies the gradient of step t - delay at step t. On a real server the delay varies.

This is another mathematics, which only the open division allows (rule T13). A submitter's own
``task.py`` for `cepheid run --division open --task` needs no more than
``create = delay_gradients(WORKLOAD, 4)``.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.trainer import Trainer
from cepheid.reference.torch.workload import Workload

Create = Callable[[RunConfig, TorchRanks], Trainer]


class StaleGradients:
    """The forward and backward pass of a trainer, on the weights of ``delay`` updates ago.

    Before that many updates they are the initial weights, or the restored ones. Statistics, such as
    those of batch normalisation, are the server's: never old. Takes memory for ``delay`` + 1 times
    the weights.
    """

    def __init__(self, trainer: Trainer, delay: int) -> None:
        self.trainer, self.compute = trainer, trainer.loss_and_gradients
        self.versions: deque[list[Tensor]] = deque(maxlen=delay + 1)

    def __call__(self) -> Tensor:
        """Set the gradients of this rank's share of the next global batch.

        Return its detached loss, a scalar.
        """
        weights = _list_weights(self.trainer)
        self.versions.append([weight.clone() for weight in weights])
        _copy(self.versions[0], weights)
        loss = self.compute()
        _copy(self.versions[-1], weights)
        return loss


def delay_gradients(source: Workload[Any] | Create, delay: int) -> Create:
    """Return what trains a workload with gradients that are ``delay`` updates old.

    The workload may also be what makes its trainer. With a delay of 0 nothing changes, bit for bit.
    """
    create: Create = partial(Trainer, source) if isinstance(source, Workload) else source

    def create_stale(config: RunConfig, ranks: TorchRanks) -> Trainer:
        trainer = create(config, ranks)
        trainer.loss_and_gradients = StaleGradients(trainer, delay)  # type: ignore[method-assign]
        return trainer

    return create_stale


def _list_weights(trainer: Trainer) -> list[Tensor]:
    """Return the weights with which this rank computes, once all of them have arrived.

    They are a part of the model, or a copy, where ranks share it.
    """
    if trainer.sharded:
        trainer.sharded.receive_weights()
    return [weight.detach() for weight in trainer.sharing.network.parameters()]


def _copy(values: list[Tensor], weights: list[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)
