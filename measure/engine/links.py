"""Count the bytes that ranks send each other over TCP, link by link, as the kernel counts them.

Linux counts the payload of each connection. Libraries that do not use TCP (NCCL over NVLink or
InfiniBand) send nothing that is counted here.
"""

import os
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
