"""Seat the ranks of a run on its nodes: which share one, and how many there are on each.

Every rank reports its host and what its launcher told it. Ranks count on nodes of equal size with
consecutive ranks, since sums in two levels, shares of work and sensors of a node rely on that.
"""

import json
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cepheid.reference.machine.placement import Placement
from cepheid.rules.errors import UserError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FIX_ORDER = (
    "start consecutive ranks on each node (srun --distribution=block, mpirun.openmpi --map-by "
    "slot, mpirun.mpich -ppn N)"
)


@dataclass(frozen=True)
class Seat:
    """What one rank reports: its host, its machine, and what its launcher told about its node."""

    host: str
    machine: str  # differs between two that are both called localhost; "" where unknown
    local_rank: int | None
    local_size: int | None

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()


def decode_seat(content: bytes) -> Seat:
    """Return the seat that ``Seat.encode`` wrote."""
    return Seat(**json.loads(content))


def find_seat(place: Placement) -> Seat:
    """Return the seat of this process."""
    try:
        machine = BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        machine = ""
    return Seat(socket.gethostname(), machine, place.local_rank, place.local_size)


def seat_rank(place: Placement, seats: Sequence[Seat]) -> Placement:
    """Return ``place`` with its local rank and the ranks on each node, given all seats by rank.

    The launcher's word counts where it told all ranks both. Else ranks with the same host are on
    one node. Raises UserError where the two contradict each other, or where nodes are not equal and
    filled one after the other; the text is the same on all ranks.
    """
    if all(seat.local_rank is not None and seat.local_size is not None for seat in seats):
        size = _read_told_size(seats)
    else:
        size = _count_on_hosts(seats)
    for rank, seat in enumerate(seats):
        _compare(rank, seat, size, seats[rank - rank % size])
    return replace(place, local_rank=place.rank % size, local_size=size)


def _read_told_size(seats: Sequence[Seat]) -> int:
    """Return the ranks on each node, which the launcher told each rank."""
    sizes = Counter(seat.local_size or 0 for seat in seats)
    for rank, seat in enumerate(seats):
        if (seat.local_rank or 0) >= (seat.local_size or 0):
            raise UserError(
                f"rank {rank} ({seat.host}) is local rank {seat.local_rank} of {seat.local_size} "
                "ranks on its node, as its launcher says: expected a smaller one; fix: unset what "
                "an earlier launcher has left, and start the ranks again"
            )
    if len(sizes) > 1:
        raise UserError(
            "the nodes have different numbers of ranks "
            f"({', '.join(str(size) for size in sorted(sizes))}); fix: start the same number on "
            "each node"
        )
    (size,) = sizes
    if len(seats) % size:
        raise UserError(
            f"{len(seats)} ranks do not fill nodes of {size}, as their launcher says; fix: start "
            "the same number on each node, and unset what an earlier launcher has left"
        )
    return size


def _count_on_hosts(seats: Sequence[Seat]) -> int:
    """Return the ranks on each node, found by the names of their hosts."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, seat in enumerate(seats):
        ranks.setdefault((seat.host, seat.machine), []).append(rank)
    for (host, _), there in ranks.items():
        if there[-1] - there[0] >= len(there):
            raise UserError(
                f"the ranks on {host} are not consecutive ({there[0]}, {there[1]}, …); fix: "
                f"{FIX_ORDER}"
            )
    sizes = {len(there) for there in ranks.values()}
    if len(sizes) > 1:
        counts = [f"{host}: {len(there)}" for (host, _), there in list(ranks.items())[:10]]
        raise UserError(
            f"the nodes have different numbers of ranks ({', '.join(counts)}); fix: start the same "
            "number on each node"
        )
    return sizes.pop()


def _compare(rank: int, seat: Seat, size: int, first: Seat) -> None:
    """Raise UserError where a rank is not where its launcher says; ``first`` is its node's."""
    if seat.local_size not in (None, size) or seat.local_rank not in (None, rank % size):
        told = "on a node" if seat.local_rank is None else f"local rank {seat.local_rank}"
        if seat.local_size is not None:
            told += f" of {seat.local_size}"
        raise UserError(
            f"rank {rank} ({seat.host}) is {told}, as its launcher says: expected local rank "
            f"{rank % size} of {size}, since each node must have {size} consecutive ranks; fix: "
            f"{FIX_ORDER}, and unset what an earlier launcher has left"
        )
    if "" not in (seat.machine, first.machine) and seat.machine != first.machine:
        raise UserError(
            f"ranks {rank - rank % size} ({first.host}) and {rank} ({seat.host}) share a node, as "
            "their launcher says, but run on two machines; fix: unset what an earlier launcher has "
            "left, and start the ranks again"
        )
