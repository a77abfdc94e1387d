"""Where a process stands: its rank, the nodes of a run, and the address where the ranks meet.

A launcher tells each rank its place. Every rank reports its host and what it was told. Ranks count
on nodes of equal size with consecutive ranks, since sums in two levels, shares of work and sensors
of a node rely on that.
"""

import json
import os
import re
import socket
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NoReturn

from cepheid.reference.machine import launchers
from cepheid.reference.machine.launchers import ContradictionError, Environment
from cepheid.rules.errors import UserError

EXIT_CODE_OF_CONTRADICTION = EXIT_CODE_OF_LOSS = 2
LINGER_SECONDS = 1.0


@dataclass(frozen=True)
class Placement:
    """The rank among all ranks, and among those of its node; None where the launcher tells nothing.

    ``launcher`` is empty for a process that no launcher has started.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_size: int | None = 1
    launcher: str = ""

    @property
    def likely_local_rank(self) -> int:
        """The local rank, or the rank as long as nobody has told more."""
        return self.rank if self.local_rank is None else self.local_rank


def find_placement() -> Placement:
    """Return the place that torchrun, Slurm or MPI gave to this process; else there is one rank.

    Raises UserError where the launcher's variables cannot be read, and where two launchers
    contradict each other; then only one rank raises it, and the others leave quietly.
    """
    try:
        return read_placement(os.environ)
    except ContradictionError as error:
        if not error.speaks:
            leave_quietly(EXIT_CODE_OF_CONTRADICTION)
        raise


def read_placement(environment: Environment) -> Placement:
    """Return the place that ``environment`` gives to a process. Raises UserError."""
    claims = launchers.read_claims(environment)
    if not claims:
        return Placement()
    claim = launchers.reconcile(claims, environment)
    world_size = claim.world_size or 1  # reconciled, it is known
    return Placement(claim.rank, world_size, claim.local_rank, claim.local_size, claim.launcher)


def leave_quietly(code: int) -> NoReturn:
    """End this rank without a message, because another rank prints the reason.

    A launcher ends all ranks as soon as one is gone, so that rank gets time to print.
    """
    time.sleep(LINGER_SECONDS)
    raise SystemExit(code)


def end_rank(code: int) -> NoReturn:
    """End this process, whose work is done and saved, without shutting the interpreter down.

    A shutdown sometimes aborts one of several ranks, because threads of gloo outlive their group.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_hear_last_word: Callable[[str], None] | None = None


def use_listener(hear: Callable[[str], None] | None) -> None:
    """Let ``hear`` be told why ``end_stuck_rank`` ends this process, or nobody."""
    global _hear_last_word
    _hear_last_word = hear


def end_stuck_rank(why: str) -> NoReturn:
    """Say why and end this process, whose main thread waits in a library and cannot be told."""
    print(f"cepheid: {why}", file=sys.stderr, flush=True)
    if _hear_last_word is not None:
        _hear_last_word(why)
    os._exit(EXIT_CODE_OF_LOSS)


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
FIX_ORDER = (
    "start consecutive ranks on each node (srun --distribution=block, mpirun.openmpi --map-by "
    "slot, mpirun.mpich -ppn N)"
)


@dataclass(frozen=True)
class Seat:
    """What one rank reports: host, machine, accelerators, and its launcher's word on its node."""

    host: str
    machine: str  # differs between two that are both called localhost; "" where unknown
    local_rank: int | None
    local_size: int | None
    accelerators: Sequence[str] = ()  # that the rank may use, each with a name of its own

    def encode(self) -> bytes:
        """Return it as JSON."""
        return json.dumps(asdict(self)).encode()


def decode_seat(content: bytes) -> Seat:
    """Return the seat that ``Seat.encode`` wrote."""
    values = json.loads(content)
    return Seat(**values | {"accelerators": tuple(values["accelerators"])})


def find_seat(place: Placement, accelerators: Sequence[str] = ()) -> Seat:
    """Return the seat of this process, which may use these accelerators."""
    try:
        machine = BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        machine = ""
    return Seat(socket.gethostname(), machine, place.local_rank, place.local_size, accelerators)


def seat_rank(place: Placement, seats: Sequence[Seat]) -> Placement:
    """Return ``place`` with its local rank and the ranks on each node, given all seats by rank.

    The launcher's word counts where it told all ranks both. Else ranks with the same host are on
    one node. Raises UserError where the two contradict each other, or where nodes are not equal and
    filled one after the other, or two ranks would drive one accelerator. All ranks raise the same.
    """
    if all(seat.local_rank is not None and seat.local_size is not None for seat in seats):
        size = _read_told_size(seats)
    else:
        size = _count_on_hosts(seats)
    for rank, seat in enumerate(seats):
        _compare(rank, seat, size, seats[rank - rank % size])
    _refuse_shared_accelerators(seats, size)
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


def _refuse_shared_accelerators(seats: Sequence[Seat], size: int) -> None:
    """Raise UserError where two ranks would drive one accelerator, or only some ranks have one.

    A rank takes the accelerator with its number on the node among those that it may use: all of its
    node, or one that the launcher has chosen for it.
    """
    drivers: dict[str, int] = {}
    for rank, seat in enumerate(seats):
        if bool(seat.accelerators) != bool(seats[0].accelerators):
            with_one, without = (0, rank) if seats[0].accelerators else (rank, 0)
            raise UserError(
                f"rank {with_one} ({seats[with_one].host}) has an accelerator and rank {without} "
                f"({seats[without].host}) has none; fix: start ranks where all have one, or set "
                "CEPHEID_DEVICE=cpu for all"
            )
        if not seat.accelerators:
            continue
        count = len(seat.accelerators)
        other = drivers.setdefault(seat.accelerators[rank % size % count], rank)
        if other != rank:
            raise UserError(
                f"ranks {other} and {rank} ({seat.host}) would drive the same accelerator, since "
                f"{size} ranks on a node see {count}; fix: start one rank for each accelerator, or "
                "set CEPHEID_DEVICE=cpu to compute on the processors"
            )


FIRST_PORT, PORTS = 10_000, 20_000  # below those that Linux gives to outgoing connections
JOBS = {  # the variables that identify a job, by launcher
    "Slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "Open MPI": ("PMIX_NAMESPACE",),
    "MPICH": ("PMI_JOBID",),
    "PMIx": ("PMIX_NAMESPACE",),
}
EXPORTS = {  # how a launcher hands variables to the ranks
    "Open MPI": "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29400",
    "MPICH": "mpirun -genv MASTER_ADDR HOST -genv MASTER_PORT 29400",
}


def find_address(place: Placement, environment: Environment) -> tuple[str, int]:
    """Return host and port where the ranks meet; the first rank listens there.

    MASTER_ADDR and MASTER_PORT count where they are set, then the first address of TF_CONFIG. Else
    the host is this one if all ranks are here, or the first one of Slurm's job, and the port is
    derived from the job. Raises UserError where the launcher tells neither.
    """
    told = launchers.read_tf_config(environment)
    first, _, behind = told.addresses[0].rpartition(":") if told else ("", "", "")
    host = environment.get("MASTER_ADDR") or first or _derive_host(place, environment)
    port = environment.get("MASTER_PORT") or behind or _derive_port(place, environment)
    absent = [name for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", port)) if not value]
    if absent:
        exports = EXPORTS.get(place.launcher, "")
        raise UserError(
            f"{absent[0]} is not set, although there are {place.world_size} ranks; fix: export "
            "MASTER_ADDR (the host of the first rank, which all ranks reach) and MASTER_PORT"
            f"{f' ({exports})' if exports else ''}, or start with torchrun"
        )
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise UserError(
            f"MASTER_PORT={port[:40]}: expected a number from 1 to 65535; fix: export a free port, "
            "for example 29400"
        )
    return host, int(port)


def find_first_host(nodes: str) -> str:
    """Return the first host of a node list of Slurm: ``rack[01-03,7]n1,other`` begins rack01n1."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0] if first else "")


def _derive_host(place: Placement, environment: Environment) -> str:
    if place.local_size == place.world_size:
        return "127.0.0.1"
    # The daemons of an MPI are a step of their own, which may lack the first node of the job.
    names = ("SLURM_STEP_NODELIST",) if place.launcher == "Slurm" else ()
    lists = (environment.get(name, "") for name in (*names, "SLURM_JOB_NODELIST"))
    return find_first_host(next(filter(None, lists), ""))


def _derive_port(place: Placement, environment: Environment) -> str:
    """Return a port that all ranks of this job derive, and another job hardly does."""
    names = JOBS.get(place.launcher, ())
    job = [environment[name] for name in names if name in environment]
    if not job and "SLURM_JOB_ID" in environment:
        job = [environment["SLURM_JOB_ID"]]
    if not job and place.local_size == place.world_size:
        job = [str(os.getuid()), os.getcwd(), *sys.argv]
    if not job:
        return ""
    return str(FIRST_PORT + zlib.crc32("\n".join(job).encode()) % PORTS)
