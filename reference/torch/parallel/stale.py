"""Stale gradients: asynchronous SGD with a parameter server, simulated so that a seed repeats it.

``delay`` + 1 workers take turns at a server that holds the weights. Each fetches the weights,
computes a gradient and sends it. Meanwhile the others have changed the weights ``delay`` times, so
the server applies the gradient of step t - delay at step t. On a real server the delay varies:
``list_arrivals`` says how it does where a worker is slow.

This is another mathematics, which only the open division allows (rule T13). A submitter's own
``task.py`` for `cepheid run --division open --task` needs no more than
``create = delay_gradients(WORKLOAD, 4)``.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any

from torch import Tensor

from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.reference.torch.trainer import Trainer
from cepheid.reference.torch.workload import Workload

Create = Callable[[RunConfig, TorchRanks], Trainer]


class StaleGradients:
    """The forward and backward pass of a trainer, on the weights of so many updates ago.

    ``ages`` has their number for each pass; all are at most ``oldest``. Before that many updates
    they are the initial weights, or the restored ones. Statistics, such as those of batch
    normalisation, are the server's: never old. Takes memory for ``oldest`` + 1 times the weights.
    """

    def __init__(self, trainer: Trainer, ages: Iterator[int], oldest: int) -> None:
        self.trainer, self.compute, self.ages = trainer, trainer.loss_and_gradients, ages
        self.versions: deque[list[Tensor]] = deque(maxlen=oldest + 1)

    def __call__(self) -> Tensor:
        """Set the gradients of this rank's share of the next global batch.

        Return its detached loss, a scalar.
        """
        weights = _list_weights(self.trainer)
        self.versions.append([weight.clone() for weight in weights])
        age = min(next(self.ages), len(self.versions) - 1)
        _copy(self.versions[-1 - age], weights)
        loss = self.compute()
        _copy(self.versions[-1], weights)
        return loss


def list_arrivals(seconds: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Yield for each update of a server the age of its gradient, and when it arrives.

    A worker takes as long for a gradient as ``seconds`` says. All begin with the initial weights,
    one after the other, so that equally fast ones arrive evenly.
    """
    count = len(seconds)
    coming = [(each * (1 + place / count), place, 0) for place, each in enumerate(seconds)]
    heapq.heapify(coming)
    update = 0
    while True:
        now, place, fetched = heapq.heappop(coming)
        yield update - fetched, now
        update += 1
        heapq.heappush(coming, (now + seconds[place], place, update))


def delay_gradients(
    source: Workload[Any] | Create, delay: int, make_ages: Callable[[], Iterator[int]] | None = None
) -> Create:
    """Return what trains a workload with gradients that are ``delay`` updates old.

    With ``make_ages`` each has an age of its own, and ``delay`` is the largest. The workload may
    also be what makes its trainer. With a delay of 0 nothing changes, bit for bit.
    """
    create: Create = partial(Trainer, source) if isinstance(source, Workload) else source

    def create_stale(config: RunConfig, ranks: TorchRanks) -> Trainer:
        trainer = create(config, ranks)
        ages = make_ages() if make_ages else repeat(delay)
        stale = StaleGradients(trainer, ages, delay)
        trainer.loss_and_gradients = stale  # type: ignore[method-assign]
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
