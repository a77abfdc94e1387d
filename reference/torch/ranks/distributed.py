"""The ranks of a run on ``torch.distributed``: start, barrier, broadcast, reductions."""

import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from cepheid.reference.machine.placement import (
    Placement,
    find_address,
    find_placement,
    leave_quietly,
)
from cepheid.reference.machine.ranks import RankEndedError, RankTimeout, read_rank_timeout
from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.devices.values import guard_waits, to_device
from cepheid.reference.torch.ranks.choice import choose_device
from cepheid.reference.torch.ranks.collectives import (
    SIGNS_OF_LOSS,
    FailureReport,
    Span,
    Watch,
    all_reduce,
    detect_lost_rank,
    read_first_line,
    use_watch,
)
from cepheid.reference.torch.ranks.heartbeats import Heartbeats
from cepheid.reference.torch.ranks.rendezvous import seat, wait_for_ranks
from cepheid.rules.errors import UserError
from cepheid.rules.host import handle_ending

EXIT_CODE_OF_FAILURE = 2


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
        """The name of the accelerator that this rank drives, or None."""
        device = find_device(self.device)
        return device.name if device.is_accelerator else None

    @property
    def device_keys(self) -> Sequence[str]:
        """What a sensor knows the device by, such as its UUID."""
        return find_device(self.device).sensor_keys

    @property
    def usable(self) -> int:
        """The number of such devices that this process could drive."""
        return len(find_device(self.device).find_all())

    @property
    def device_code(self) -> Path | None:
        """The file of a vendor's own device, None where the device is one of ours."""
        return find_device(self.device).find_code()

    @property
    def libraries(self) -> Mapping[str, str]:
        """The versions of what lies below torch on this rank's device."""
        return find_device(self.device).versions

    def barrier(self) -> None:
        """Wait for this rank's device, then for all other ranks."""
        find_device(self.device).synchronize()
        if self.world_size > 1:
            with detect_lost_rank():
                dist.barrier()

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values``, of any shape and device, on the host of each rank.

        NCCL sums only on GPUs, and later: it is the host's wait in which a lost rank is named.
        """
        if self.world_size > 1:
            is_here = values.device == self.device
            values = all_reduce(values.clone() if is_here else to_device(values, self.device))
        return find_device(self.device).fetch(values)

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

    is_planned: ClassVar[bool] = True

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

    The process group is destroyed at the end of the context. The backend is that of the
    devices (one per local rank), e.g. nccl, and gloo where CEPHEID_DEVICE is cpu. If several ranks
    fail, one of them reports the reason and the others exit quietly. Unless the caller changes
    that, Ctrl-C and SIGTERM end one of several ranks immediately, even while it waits for another.
    """
    place = find_placement()
    if place.world_size == 1:
        yield TorchRanks(0, 1, choose_device().place)
        return
    with _join_ranks(place) as (seated, device):
        yield TorchRanks(seated.rank, seated.world_size, device, seated.local_size or 1)


@contextmanager
def _join_ranks(place: Placement) -> Iterator[tuple[Placement, torch.device]]:
    """Wait for all ranks; yield this one's place on its node, and its device.

    A rank that fails in the context leaves a report for the others.
    """
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
    backend = find_device(device).backend
    report = FailureReport(PrefixStore("word", store))
    heartbeats = Heartbeats(PrefixStore("signs", store.clone()), place, timeout)
    use_watch(Watch(heartbeats, report))
    guard_waits(detect_lost_rank)
    try:
        with heartbeats.watch():
            yield place, device
    except RankEndedError as error:
        if error.is_reported or place.rank != error.speaker:
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    except BaseException as error:
        if not report.leave(place.rank, error):
            leave_quietly(EXIT_CODE_OF_FAILURE)
        raise
    finally:
        if backend == "gloo":  # its threads must not outlive the interpreter
            dist.destroy_process_group()
    if backend != "gloo":  # not after a failure: it would wait for ranks that are gone
        dist.destroy_process_group()
    # The first rank keeps the thread of the store, which must not outlive the interpreter either.
    # It stays after a failure, because the other ranks then read the store.
    use_watch(None)
    del store


def _rendezvous(place: Placement, timeout: RankTimeout) -> tuple[Any, Placement, torch.device]:
    """Return the store of the ranks after all have met, the place of this one, and its device.

    Raises UserError where they cannot meet, or where their places contradict each other.
    """
    host, port = find_address(place, os.environ)
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
    handle_ending(signal.SIG_DFL)
    try:
        store = wait_for_ranks(place, timeout)
        place = seat(place, store)
        device = choose_device(place.local_rank or 0)
        dist.init_process_group(
            device.backend,
            store=PrefixStore("ranks", store),
            rank=place.rank,
            world_size=place.world_size,
            timeout=timedelta(seconds=timeout.seconds),
        )
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not SIGNS_OF_LOSS.search(
            read_first_line(error)
        ):
            raise
        raise UserError(
            f"{place.world_size} ranks could not meet at {host}:{port} ({read_first_line(error)}): "
            "use the host of the first rank and a free port, and start all ranks"
        ) from error
    return store, place, device.place
