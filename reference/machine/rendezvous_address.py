"""Find the address where the ranks meet: as exported, else as the launcher tells it."""

import os
import re
import sys
import zlib

from cepheid.reference.machine.launchers import Environment
from cepheid.reference.machine.placement import Placement
from cepheid.rules.errors import UserError

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

    MASTER_ADDR and MASTER_PORT count where they are set. Else the host is this one if all ranks are
    here, or the first one of Slurm's job, and the port is derived from the job. Raises UserError
    where the launcher tells neither.
    """
    host = environment.get("MASTER_ADDR") or _derive_host(place, environment)
    port = environment.get("MASTER_PORT") or _derive_port(place, environment)
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
