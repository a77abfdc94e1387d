"""The place of this process among the ranks, as its launcher set it. Needs no framework."""

import os
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

from cepheid.reference.machine import launchers
from cepheid.reference.machine.launchers import ContradictionError, Environment

EXIT_CODE_OF_CONTRADICTION = 2
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
