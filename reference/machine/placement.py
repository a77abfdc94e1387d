"""The place of this process among the ranks, as its launcher set it. Needs no framework."""

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
    """The rank among all ranks, and among those of this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


class RankEndedError(UserError):
    """The end of another rank; ``is_reported`` where that rank itself prints the reason.

    Otherwise the rank ``speaker`` prints it for all.
    """

    def __init__(self, message: str, *, is_reported: bool, speaker: int = 0) -> None:
        super().__init__(message)
        self.is_reported, self.speaker = is_reported, speaker


def find_placement() -> Placement:
    """Read what torchrun, Slurm or MPI set; without any of them there is one rank."""
    for rank, size, local in LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return Placement(
                int(os.environ[rank]), int(os.environ[size]), int(os.environ.get(local, "0"))
            )
    return Placement()


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
