"""Collectives of torch.distributed that name a rank which is lost, and what batch norms span.

This module starts no ranks: ``distributed`` beside it does, and tells whom to ask about a loss.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from cepheid.reference.machine.ranks import RankEndedError

KEY = "first"
REPORT_SECONDS = 0.3  # for the report of a failed rank to arrive after a connection broke
# What gloo and nccl say where a rank is gone. Any other error is a bug and is raised as it is.
SIGNS_OF_LOSS = re.compile(r"peer|pipe|connect|tim(e|ed) ?out|abort|remote", re.IGNORECASE)


@dataclass(frozen=True)
class Span:
    """The samples over which one rank's batch norms normalise.

    The rank's own samples in ``local_groups`` equal parts, or all of them together with those of
    the other members of the process group ``group``, which has ``ranks`` ranks. If ranks share
    images (``cepheid.reference.torch.spatial``), ``shares`` are the weights of the group's ranks in
    a mean, and each value is on ``copies`` ranks.
    """

    local_groups: int = 1
    group: Any = None
    ranks: int = 1
    shares: tuple[float, ...] = ()
    copies: int = 1

    def count_values(self, own: int) -> int:
        """Return the number of different values in a group, ``own`` of which are on this rank."""
        share = self.shares[dist.get_rank(self.group)] if self.shares else 1 / self.ranks
        return round(own / share / self.copies)


class Heartbeats(Protocol):
    """What is told when this rank waits for the others (``heartbeats`` beside this module)."""

    def enter(self) -> None:
        """Note that this rank begins to wait."""

    def leave(self) -> None:
        """Note that it has ended to wait."""

    def raise_if_awaited(self) -> None:
        """Raise RankEndedError with the names of the ranks that did not come; else return."""


class FailureReport:
    """The reason why the first rank failed, where all ranks can read it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def leave(self, rank: int, error: BaseException) -> bool:
        """Leave a report unless there is one; return False if another rank's has the same text."""
        reason = f"{type(error).__name__}: {read_first_line(error)}"
        try:
            report = self._store.compare_set(KEY, "", f"{rank}\n{reason}").decode()
        except RuntimeError:  # the rank that kept the store is gone
            return True
        first, _, text = report.partition("\n")
        return int(first) == rank or text != reason

    def read(self) -> str:
        """Return the report, e.g. ``rank 1: RuntimeError: …``, or an empty string."""
        deadline = time.monotonic() + REPORT_SECONDS
        try:
            while not self._store.check([KEY]):
                if time.monotonic() > deadline:
                    return ""
                time.sleep(REPORT_SECONDS / 10)
            rank, _, text = self._store.get(KEY).decode().partition("\n")
        except RuntimeError:
            return ""
        return f"rank {rank}: {text}"


@dataclass(frozen=True)
class Watch:
    """Whom to ask about a rank that is lost: the heartbeats of all, and the report of the first."""

    heartbeats: Heartbeats
    report: FailureReport


_watch: Watch | None = None


def use_watch(watch: Watch | None) -> None:
    """Ask ``watch`` about lost ranks from now on, or nobody."""
    global _watch
    _watch = watch


@contextmanager
def detect_lost_rank() -> Iterator[None]:
    """Run one or more collectives; raise RankEndedError where another rank is gone."""
    watch = _watch
    if watch:
        watch.heartbeats.enter()
    try:
        yield
    except RuntimeError as error:
        reason = read_first_line(error)
        if watch and SIGNS_OF_LOSS.search(reason):
            watch.heartbeats.raise_if_awaited()
        report = watch.report.read() if watch else ""
        if report:
            raise RankEndedError(report, is_reported=True) from error
        if not SIGNS_OF_LOSS.search(reason):
            raise
        raise RankEndedError(
            f"another rank has ended without a message, or cannot be reached ({reason}). If it was "
            "killed, perhaps for lack of memory, the launcher reports it",
            is_reported=False,
        ) from error
    finally:
        if watch:
            watch.heartbeats.leave()


def all_reduce(values: Tensor, group: Any = None) -> Tensor:
    """Sum ``values`` of any shape over all ranks, or those of ``group``, in place; return them."""
    with detect_lost_rank():
        dist.all_reduce(values, group=group)
    return values


def all_gather(values: Tensor, group: Any = None) -> Tensor:
    """Return the ``values`` of all ranks, or those of ``group``, stacked by rank: (ranks, …)."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    with detect_lost_rank():
        dist.all_gather(parts, values.contiguous(), group=group)
    return torch.stack(parts)


def read_first_line(error: BaseException) -> str:
    """Return the first line of the message of an error."""
    return str(error).strip().partition("\n")[0]
