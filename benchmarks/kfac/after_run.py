"""What a run of kfac measures and reports once the clock has stopped."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cepheid.benchmarks.kfac.model import RunningMixup
from cepheid.reference.run.report import Table, Value
from cepheid.second_order import KFAC
from cepheid.second_order.staleness import Interval

SentBytes = Mapping[tuple[str, str], int]
"""Bytes by purpose and level (``cepheid.second_order.exchange``)."""
PLAIN_TURNS, PLAIN_UPDATES = 10, 5
PLAIN_SECONDS = 60  # limit for all turns together, on a machine where one update takes long


class Preconditioned(Protocol):
    """What of a task an update without K-FAC needs, and changes for a while."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: Any
    mixup: RunningMixup
    ranks: Any
    samples: int
    is_sharded: bool

    def loss_and_gradients(self) -> Tensor:
        """Run forward and backward on this rank's share of a batch; return the loss, a scalar."""

    def share_gradients(self) -> None:
        """Average the gradients over the ranks."""

    def apply_gradients(self) -> None:
        """Change the weights."""

    def synchronize(self) -> None:
        """Wait for the device and for all other ranks."""


def measure_plain_update(task: Preconditioned) -> float:
    """Return the median time of an update without K-FAC in ms; ``task`` stays as it is."""
    with _restore_afterwards(task):
        return statistics.median(_time_plain_updates(task))


def _time_plain_updates(task: Preconditioned) -> Iterator[float]:
    """Yield the mean time of each turn of successive updates in ms."""
    task.model.train()
    first_ms = _time_turn(task, 1)  # also allocates what the other updates reuse
    turns: int = task.ranks.broadcast(int(1000 * PLAIN_SECONDS / (PLAIN_UPDATES * first_ms)))
    for _ in range(max(1, min(PLAIN_TURNS, turns))):
        yield _time_turn(task, PLAIN_UPDATES)


def _time_turn(task: Preconditioned, updates: int) -> float:
    task.synchronize()
    started = time.perf_counter()
    for _ in range(updates):
        task.loss_and_gradients()
        task.share_gradients()
        if task.is_sharded:  # K-FAC would average them
            task.ranks.average_gradients(task.model.parameters())
        task.apply_gradients()
    task.synchronize()
    return 1000 * (time.perf_counter() - started) / updates


@contextmanager
def _restore_afterwards(task: Preconditioned) -> Iterator[None]:
    """Restore the state of ``task`` at the end of the context."""
    optimizer = task.optimizer
    tensors = [*task.model.state_dict().values()]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    before, known = [tensor.clone() for tensor in tensors], set(optimizer.state)
    scale, samples = task.scaler.state_dict(), task.samples
    mixup = task.mixup
    task.mixup = RunningMixup(mixup.size)  # there may be no place for a copy of what is mixed
    rates = [(group["lr"], group["momentum"]) for group in optimizer.param_groups]
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(tensors, before)
        for parameter in set(optimizer.state) - known:  # of layers that other ranks update
            del optimizer.state[parameter]
        task.samples, task.mixup = samples, mixup
        if scale:
            task.scaler.load_state_dict(scale)
        for group, (rate, momentum) in zip(optimizer.param_groups, rates, strict=True):
            group["lr"], group["momentum"] = rate, momentum


def make_report(kfac: KFAC, sent: Sequence[SentBytes]) -> tuple[Table, ...]:
    """Return the refreshes of each kind of factor, each rank's share of the inverses, and bytes.

    ``sent`` has what each rank sent in the last update; alone it sends nothing.
    """
    kinds = {"A": "A, of inputs", "B": "B, of gradients", "F": "of batch norms"}
    by_kind: dict[str, list[Interval]] = {kind: [] for kind in kinds}
    for name, interval in kfac.intervals.items():
        by_kind[name[-1]].append(interval)
    staleness: tuple[Mapping[str, Value], ...] = tuple(
        {
            "factors": kinds[kind],
            "number": len(intervals),
            "refreshes of each, mean": statistics.mean(each.refreshes for each in intervals),
            "fewest": min(each.refreshes for each in intervals),
            "most": max(each.refreshes for each in intervals),
            "last interval, median": statistics.median(each.steps for each in intervals),
            "longest": max(each.steps for each in intervals),
        }
        for kind, intervals in by_kind.items()
        if intervals
    )
    owners = kfac.owners
    total = sum(owners.cost_by_rank) or 1.0
    balance: tuple[Mapping[str, Value], ...] = tuple(
        {"rank": rank, "layers": owners.of_layer.count(rank), "share": round(cost / total, 4)}
        for rank, cost in enumerate(owners.cost_by_rank)
    )
    tables = (
        Table(
            "Staleness",
            staleness,
            f"in {kfac.curvature.steps:,} updates; {kfac.refreshed_share:.1%} of all refreshes",
        ),
        Table("Inverses", balance, "by the cubes of the factors' sizes"),
    )
    bytes_sent = tuple(_add_up_bytes(sent))
    note = "of all ranks for K-FAC in the last update; where nodes are told apart, by level"
    return (*tables, Table("Bytes sent", bytes_sent, note)) if bytes_sent else tables


def _add_up_bytes(sent: Sequence[SentBytes]) -> Iterator[Mapping[str, Value]]:
    """Yield the bytes of all ranks by purpose and level."""
    totals: Counter[tuple[str, str]] = Counter()
    for of_rank in sent:
        totals.update(of_rank)
    for (purpose, level), count in sorted(totals.items()):
        yield {"purpose": purpose, "level": level, "bytes": count}
