"""Count bytes: those that ranks send each other, and those that tensors take.

The kernel counts the payload of each TCP connection. Libraries that do not use TCP (NCCL over
NVLink or InfiniBand) send nothing that is counted here.
"""

import gc
import os
import socket
import struct
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cepheid.measure.engine.turns import take_steps

if TYPE_CHECKING:
    from cepheid.reference.torch.device import Device
    from cepheid.reference.torch.ranks.distributed import TorchRanks

Connection = tuple[str, int, str, int]  # own address and port, the other's
DESCRIPTORS = Path("/proc/self/fd")
# In the kernel's struct tcp_info: tcpi_bytes_sent, then tcpi_bytes_retrans, since Linux 4.19.
BYTES_SENT_AT, TCP_INFO_BYTES = 200, 216


def count_bytes(ranks: "TorchRanks", work: Callable[[], object]) -> list[list[int]]:
    """Call ``work`` on all ranks; return the bytes that each rank sent to each other one.

    Row r has what rank r sent, by the rank that got it. Every rank gets the same table.
    """
    ranks.barrier()
    before = read_sent_bytes()
    work()
    ranks.barrier()
    after = read_sent_bytes()
    sent = {connection: count - before.get(connection, 0) for connection, count in after.items()}
    by_rank: list[dict[Connection, int]] = ranks.all_gather_object(sent)
    owner = {connection: rank for rank, counts in enumerate(by_rank) for connection in counts}
    table = [[0] * ranks.world_size for _ in range(ranks.world_size)]
    for rank, counts in enumerate(by_rank):
        for (address, port, other, other_port), count in counts.items():
            reader = owner.get((other, other_port, address, port))
            if reader is not None:
                table[rank][reader] += count
    return table


def predict_bytes(size: int, shape: tuple[int, int]) -> tuple[float, float]:
    """Return the bytes that a rank sends within its row and to other rows to sum ``size`` bytes.

    In a row of c ranks it sends (c - 1) / c of them to scatter and as much to gather; between r
    rows twice (r - 1) / r of its share. One row is a flat sum.
    """
    rows, columns = shape
    share = size / columns
    return 2 * share * (columns - 1), 2 * share * (rows - 1) / rows


def read_sent_bytes() -> Mapping[Connection, int]:
    """Return the bytes that this process has sent on each TCP connection, without repetitions."""
    sent = {}
    for descriptor in DESCRIPTORS.iterdir() if DESCRIPTORS.is_dir() else ():
        with suppress(OSError):  # no socket, not connected, or closed by now
            if os.readlink(descriptor).startswith("socket:"):
                with closing(socket.socket(fileno=os.dup(int(descriptor.name)))) as connection:
                    here, there = connection.getsockname(), connection.getpeername()
                    info = connection.getsockopt(
                        socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES
                    )
                if len(info) == TCP_INFO_BYTES:
                    first, again = struct.unpack_from("QQ", info, BYTES_SENT_AT)
                    sent[*here[:2], *there[:2]] = first - again
    return sent


def measure_peak_bytes(job: Callable[[], object]) -> int:
    """Return the most bytes that tensors take at a time while a job runs, above those before it."""
    with torch.autograd.profiler.profile(profile_memory=True) as profiled:
        job()
    assert profiled.kineto_results is not None
    changes = [event for event in profiled.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(accumulate((int(event.nbytes()) for event in changes), initial=0))


def weigh_task(make: Callable[[], Any], device: "Device") -> tuple[Any, int]:
    """Return the task that ``make`` makes, and the bytes that its second step needs at most.

    They are its weights, its state and what the step takes beside them, without what was there
    before: by the allocator of an accelerator, elsewhere by torch's tensors.
    """
    count = device.allocated_bytes if device.is_accelerator else count_live_bytes
    gc.collect()
    before = count()
    task = make()
    take_steps(task, 1)
    if not device.is_accelerator:
        kept = count() - before
        return task, kept + measure_peak_bytes(lambda: take_steps(task, 1))
    device.forget_peak()
    take_steps(task, 1)
    return task, max(0, device.peak_bytes() - before)  # 0 where a device counts nothing


def count_live_bytes() -> int:
    """Return the bytes of all tensors of this process on processors, and of their gradients."""
    found = [each for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter)]
    found += [each.grad for each in found if each.is_leaf and each.grad is not None]
    storages = (each.untyped_storage() for each in found if each.device.type == "cpu")
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def count_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state on this rank."""
    values = chain.from_iterable(state.values() for state in optimizer.state.values())
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


@dataclass
class SavedBytes:
    """The bytes that a forward pass keeps for the backward pass: now, and at most.

    Tensors whose addresses are ``ignored``, such as parameters, do not count, and each storage
    counts once.
    """

    ignored: set[int] = field(default_factory=set)
    most: int = 0
    _kept: dict[int, list[int]] = field(default_factory=dict)  # uses and bytes, by address

    @classmethod
    def beside(cls, parameters: Iterable[Tensor]) -> "SavedBytes":
        """Return a counter that ignores these parameters, of any shapes."""
        return cls({parameter.data_ptr() for parameter in parameters})

    def count(self) -> AbstractContextManager[object]:
        """Return a context in which passes are counted."""
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor
        )

    def add(self, address: int, size: int) -> None:
        """Count a use of a storage."""
        self._kept.setdefault(address, [0, size])[0] += 1
        self.most = max(self.most, sum(size for _, size in self._kept.values()))

    def remove(self, address: int) -> None:
        """Count a use less."""
        self._kept[address][0] -= 1
        if not self._kept[address][0]:
            del self._kept[address]


class _Kept:
    """A tensor that is counted while it exists."""

    def __init__(self, counter: SavedBytes, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.tensor, self.counter, self.address = tensor, counter, storage.data_ptr()
        self.counts = self.address not in counter.ignored
        if self.counts:
            counter.add(self.address, storage.nbytes())

    def __del__(self) -> None:
        if self.counts:
            self.counter.remove(self.address)
