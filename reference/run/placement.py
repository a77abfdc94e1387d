"""Which rank of how many this process is, as its launcher tells it. Needs no framework."""

import os
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

from rules.errors import UserError

LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
LINGER_SECONDS = 1.0


@dataclass(frozen=True)
class Placement:
    """Rank among all, and among those of this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


class RankEndedError(UserError):
    """Another rank has ended before it could take part. ``is_told``: it says why itself."""

    def __init__(self, message: str, *, is_told: bool) -> None:
        super().__init__(message)
        self.is_told = is_told


def find_placement() -> Placement:
    """As torchrun, Slurm or MPI set it; without any of them one rank."""
    for rank, size, local in LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return Placement(
                int(os.environ[rank]), int(os.environ[size]), int(os.environ.get(local, "0"))
            )
    return Placement()


def leave_quietly(code: int) -> NoReturn:
    """End this rank, because another one says why.

    A launcher ends all ranks as soon as one is gone, so the one that speaks gets time to do it.
    """
    time.sleep(LINGER_SECONDS)
    raise SystemExit(code)


def end_rank(code: int) -> NoReturn:
    """End this process, whose work is done and put away, without shutting the interpreter down.

    Now and then that aborts one of several ranks: threads of gloo outlive their group.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
