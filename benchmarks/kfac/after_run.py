"""What a run of kfac measures and reports once the clock has stopped."""

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cepheid.benchmarks.kfac.model import RunningMixup
from cepheid.benchmarks.kfac.preconditioner import KfacPreconditioner, SentBytes
from cepheid.reference.run.report import Table, Value
from cepheid.reference.torch.preconditioner import Preconditioner
from cepheid.second_order.statistic import Interval

PLAIN_TURNS, PLAIN_UPDATES = 10, 5
PLAIN_SECONDS = 60  # limit for all turns together, on a machine where one update takes long


def measure_afterwards(trainer: Any) -> Mapping[str, float]:
    """Measure an update without K-FAC, on the pictures that would come next.

    It has no hooks, which would also break compiled code. The trainer stays as it is.
    """
    preconditioner = trainer.preconditioner
    if not isinstance(preconditioner, KfacPreconditioner):
        return {}
    kfac = preconditioner.kfac
    assert kfac is not None
    preconditioner.sent = trainer.ranks.all_gather_object(kfac.bytes_sent)
    kfac.detach()
    trainer.preconditioner = Preconditioner()
    trainer.compiled_loss.enabled = trainer.execution.compile == "on"
    try:
        with _restore_afterwards(trainer):
            milliseconds = list(_time_plain_updates(trainer, preconditioner.shares_update))
    finally:
        kfac.attach()
        trainer.preconditioner = preconditioner
    return {"plain_update_ms": statistics.median(milliseconds)}


def _time_plain_updates(trainer: Any, is_owned: bool) -> Iterator[float]:
    """Yield the mean time of each turn of successive updates in ms."""
    trainer.model.train()
    first_ms = _time_turn(trainer, is_owned, 1)  # also allocates what the other updates reuse
    turns: int = trainer.ranks.broadcast(int(1000 * PLAIN_SECONDS / (PLAIN_UPDATES * first_ms)))
    for _ in range(max(1, min(PLAIN_TURNS, turns))):
        yield _time_turn(trainer, is_owned, PLAIN_UPDATES)


def _time_turn(trainer: Any, is_owned: bool, updates: int) -> float:
    trainer.synchronize()
    started = time.perf_counter()
    for _ in range(updates):
        trainer.loss_and_gradients()
        trainer.sharing.reduce()
        if is_owned:  # K-FAC would average them
            trainer.ranks.average_gradients(trainer.model.parameters())
        trainer.apply_gradients()
    trainer.synchronize()
    return 1000 * (time.perf_counter() - started) / updates


@contextmanager
def _restore_afterwards(trainer: Any) -> Iterator[None]:
    """Restore the state of the trainer at the end of the context."""
    optimizer = trainer.optimizer
    tensors = [*trainer.model.state_dict().values()]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, Tensor)]
    before, known = [tensor.clone() for tensor in tensors], set(optimizer.state)
    scale, samples = trainer.scaler.state_dict(), trainer.samples
    mixup = trainer.data.mixup  # there may be no place for a copy of what is mixed
    trainer.data.mixup = RunningMixup(mixup.size)
    rates = [(group["lr"], group["momentum"]) for group in optimizer.param_groups]
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(tensors, before)
        for parameter in set(optimizer.state) - known:  # of layers that other ranks update
            del optimizer.state[parameter]
        trainer.samples, trainer.data.mixup = samples, mixup
        if scale:
            trainer.scaler.load_state_dict(scale)
        for group, (rate, momentum) in zip(optimizer.param_groups, rates, strict=True):
            group["lr"], group["momentum"] = rate, momentum


def make_report(preconditioner: KfacPreconditioner) -> tuple[Table, ...]:
    """Return the refreshes of each kind of factor, each rank's share of the inverses, and bytes.

    A rank that is alone sends nothing.
    """
    kfac, sent = preconditioner.kfac, preconditioner.sent
    assert kfac is not None
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
