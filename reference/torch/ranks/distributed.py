"""The ranks of a run on ``torch.distributed``: start, barrier, broadcast, reductions."""

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from cepheid.reference.machine.placement import (
    Placement,
    RankEndedError,
    find_placement,
    leave_quietly,
)
from cepheid.reference.machine.rendezvous_address import find_address
from cepheid.reference.torch.ranks.heartbeats import Heartbeats, RankTimeout, read_rank_timeout
from cepheid.reference.torch.ranks.rendezvous import seat, wait_for_ranks
from cepheid.rules.errors import UserError

EXIT_CODE_OF_FAILURE = 2
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


@dataclass(frozen=True)
class TorchRanks:
    """This process among those of a run on torch, and the device that it drives.

    Each ``partitions`` consecutive ranks are one replica of the model and share its work.
    """

    rank: int
    world_size: int
    device: torch.device
    ranks_per_node: int = 1
    partitions: int = 1

    def partition(self, partitions: int, setting: str = "partitions") -> Self:
        """Return the same with replicas of ``partitions`` ranks; raise UserError if some remain."""
        if self.world_size % partitions:
            raise UserError(
                f"{setting}: {self.world_size} rank{'s' * (self.world_size > 1)} cannot form "
                f"replicas of {partitions} ranks; fix: start a multiple of {partitions} ranks, or "
                f"choose another {setting}"
            )
        return replace(self, partitions=partitions)

    @property
    def replica(self) -> int:
        """The number of this rank's replica, which has its own share of every global batch."""
        return self.rank // self.partitions

    @property
    def replicas(self) -> int:
        """The number of replicas of the model: one for each rank, unless ranks share one."""
        return self.world_size // self.partitions

    @property
    def is_first(self) -> bool:
        """Whether this is the one rank that writes."""
        return self.rank == 0

    @property
    def framework(self) -> str:
        """Name and version of the framework."""
        return f"torch {torch.__version__}"

    @property
    def accelerator(self) -> str | None:
        """The name of the GPU that this rank drives, or None."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None

    def barrier(self) -> None:
        """Wait for this rank's device, then for all other ranks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self.world_size > 1:
            with detect_lost_rank():
                dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values``, of any shape and device, on the device of each rank."""
        if self.world_size > 1:
            values = all_reduce(values.to(self.device, copy=True))  # NCCL sums on GPUs only
        return values

    def broadcast(self, message: Any) -> Any:
        """Return the first rank's ``message``, a picklable value, on every rank."""
        if self.world_size == 1:
            return message
        box = [message]
        with detect_lost_rank():
            dist.broadcast_object_list(box, src=0)
        return box[0]

    def all_gather_object(self, message: Any) -> list[Any]:
        """Return every rank's ``message``, a picklable value, by rank, on every rank."""
        if self.world_size == 1:
            return [message]
        answers: list[Any] = [None] * self.world_size
        with detect_lost_rank():
            dist.all_gather_object(answers, message)
        return answers

    def is_true_everywhere(self, flag: bool) -> bool:
        """Return whether ``flag`` is true on all ranks, on every rank."""
        return all(self.all_gather_object(flag))

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over all ranks, in one all-reduce."""
        self.average(p.grad for p in parameters if p.grad is not None)

    def average(self, values: Iterable[Tensor]) -> None:
        """Replace every tensor, of any shape, by its mean over all ranks, in one all-reduce."""
        if self.world_size == 1:
            return
        tensors = list(values)
        flat = all_reduce(torch.cat([tensor.flatten() for tensor in tensors])) / self.world_size
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, mean in zip(tensors, parts, strict=True):
            tensor.copy_(mean.view(tensor.shape))

    def make_subgroup(self, size: int) -> Any:
        """Return the process group of this rank among groups of ``size`` consecutive ranks.

        All ranks must call it. ``size`` divides their number.
        """
        with detect_lost_rank():
            return dist.new_subgroups(group_size=size)[0]

    def make_span(self, samples: int, share: int) -> "Span":
        """Return the span of batch normalisation over ``samples`` consecutive samples.

        Each replica has ``share`` samples of the global batch. All ranks must call it. Raises
        UserError as ``split_span``.
        """
        local_groups, replicas = self.split_span(samples, share)
        ranks = replicas * self.partitions
        return Span(local_groups, self.make_subgroup(ranks) if ranks > 1 else None, ranks)

    def split_span(self, samples: int, share: int) -> tuple[int, int]:
        """Return the groups of ``samples`` in a replica's ``share``, and the replicas in a group.

        At least one of the two numbers is 1. If ``samples`` is 0 or more than the global batch
        has, the group is the global batch. Raises UserError where groups would cut through a
        share unevenly.
        """
        total = share * self.replicas
        samples = min(samples or total, total)
        if total % samples or (share % samples and samples % share):
            raise UserError(
                f"model_bn_span {samples}: {self._describe_replicas()} with {share} samples each "
                f"cannot normalise over groups of it: choose a divisor or a multiple of {share} "
                f"that divides {total}, or 0 for the whole global batch"
            )
        return max(1, share // samples), max(1, samples // share)

    def split_batch(self, global_batch_size: int) -> int:
        """Return the samples per replica; raise UserError if the batch does not divide evenly."""
        if global_batch_size % self.replicas:
            raise UserError(
                f"global_batch_size {global_batch_size} cannot be shared evenly by "
                f"{self._describe_replicas()}: choose a multiple of {self.replicas}"
            )
        return global_batch_size // self.replicas

    def _describe_replicas(self) -> str:
        if self.partitions == 1:
            return f"{self.world_size} ranks"
        return f"{self.replicas} replicas of {self.partitions} ranks"


@dataclass(frozen=True)
class PlannedRanks(TorchRanks):
    """The first of ranks that exist only in a plan: it waits for nobody."""

    def barrier(self) -> None:
        """Return at once."""

    def broadcast(self, message: Any) -> Any:
        """Return ``message``."""
        return message

    def all_gather_object(self, message: Any) -> list[Any]:
        """Return ``message`` as that of every rank."""
        return [message] * self.world_size


@contextmanager
def plan_ranks(count: int, per_node: int) -> Iterator[PlannedRanks]:
    """Yield the first of ``count`` ranks, ``per_node`` on each machine, without starting any."""
    yield PlannedRanks(0, count, torch.device("cpu"), per_node)


@contextmanager
def start_ranks() -> Iterator[TorchRanks]:
    """Start the ranks that ``torchrun``, Slurm or MPI set up, or a single process.

    The process group is destroyed at the end of the context. The backend is nccl where there are
    GPUs (one per local rank) and gloo elsewhere. If several ranks fail, one of them reports the
    reason and the others exit quietly. Unless the caller changes that, Ctrl-C and SIGTERM end one
    of several ranks immediately, even while it waits for another one.
    """
    place = find_placement()
    if place.world_size == 1:
        yield TorchRanks(0, 1, _take_device(place))
        return
    with _join_ranks(place) as (seated, device):
        yield TorchRanks(seated.rank, seated.world_size, device, seated.local_size or 1)


def _take_device(place: Placement) -> torch.device:
    """Return the device of this rank, which becomes torch's current one."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", (place.local_rank or 0) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


@contextmanager
def _join_ranks(place: Placement) -> Iterator[tuple[Placement, torch.device]]:
    """Wait for all ranks; yield this one's place on its node, and its device.

    A rank that fails in the context leaves a report for the others.
    """
    global _failure_report, _heartbeats
    timeout = read_rank_timeout()
    try:
        store, place, device = _rendezvous(place, timeout)
    except RankEndedError:
        leave_quietly(EXIT_CODE_OF_FAILURE)
    except UserError:
        # Two on each machine speak: the first rank of all may be missing.
        if place.rank and place.likely_local_rank > 1:
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    backend = _name_backend(device)
    _failure_report = _FailureReport(PrefixStore("word", store))
    _heartbeats = Heartbeats(PrefixStore("signs", store.clone()), place, timeout)
    try:
        with _heartbeats.watch():
            yield place, device
    except RankEndedError as error:
        if error.is_reported or place.rank != error.speaker:
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    except BaseException as error:
        if not _failure_report.leave(place.rank, error):
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    finally:
        if backend == "gloo":  # its threads must not outlive the interpreter
            dist.destroy_process_group()
    if backend != "gloo":  # not after a failure: it would wait for ranks that are gone
        dist.destroy_process_group()
    # The first rank keeps the thread of the store, which must not outlive the interpreter either.
    # It stays after a failure, because the other ranks then read the store.
    _failure_report = _heartbeats = None
    del store


def _name_backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _rendezvous(place: Placement, timeout: RankTimeout) -> tuple[Any, Placement, torch.device]:
    """Return the store of the ranks after all have met, the place of this one, and its device.

    Raises UserError where they cannot meet, or where their places contradict each other.
    """
    host, port = find_address(place, os.environ)
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        store = wait_for_ranks(place, timeout)
        place = seat(place, store)
        device = _take_device(place)
        dist.init_process_group(
            _name_backend(device),
            store=PrefixStore("ranks", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout.seconds),
        )
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not SIGNS_OF_LOSS.search(_first_line(error)):
            raise
        raise UserError(
            f"{place.world_size} ranks could not meet at {host}:{port} ({_first_line(error)}): "
            "use the host of the first rank and a free port, and start all ranks"
        ) from error
    return store, place, device


class _FailureReport:
    """The reason why the first rank failed, where all ranks can read it."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def leave(self, rank: int, error: BaseException) -> bool:
        """Leave a report unless there is one; return False if another rank's has the same text."""
        reason = f"{type(error).__name__}: {_first_line(error)}"
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


_failure_report: _FailureReport | None = None
_heartbeats: Heartbeats | None = None


@contextmanager
def detect_lost_rank() -> Iterator[None]:
    """Run one or more collectives; raise RankEndedError where another rank is gone."""
    if _heartbeats:
        _heartbeats.enter()
    try:
        yield
    except RuntimeError as error:
        reason = _first_line(error)
        if _heartbeats and SIGNS_OF_LOSS.search(reason):
            _heartbeats.raise_if_awaited()
        report = _failure_report.read() if _failure_report else ""
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
        if _heartbeats:
            _heartbeats.leave()


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


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
