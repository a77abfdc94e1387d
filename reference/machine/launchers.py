"""Read what launchers tell a process in its environment: its rank, and its place on its node.

One launcher may start another: Slurm starts the agents of torchrun or the daemons of MPI, one on
each node. Then the variables of both are there, and those of the inner one count. Two that are
neither nested nor agree are an error, because ranks would otherwise wait for ranks that never come.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cepheid.rules.errors import UserError

Environment = Mapping[str, str]
MOST_RANKS = 10**7


@dataclass(frozen=True)
class Variables:
    """The names of the variables of one launcher; for some facts it has several, or none."""

    launcher: str
    rank: str
    world_size: tuple[str, ...]
    local_rank: str = ""
    local_size: str = ""


LAUNCHERS = (  # the innermost first
    Variables("torchrun", "RANK", ("WORLD_SIZE",), "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Variables("Open MPI", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # MPICH, Intel MPI, and Slurm with --mpi=pmi2, which tells nothing about the node this way.
    Variables("MPICH", "PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    Variables("Slurm", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID"),
    Variables("PMIx", "PMIX_RANK", ()),  # it has no variable with the number of ranks
)  # fmt: skip


TF_CONFIG = "TF_CONFIG"


@dataclass(frozen=True)
class TfConfig:
    """What the variable TF_CONFIG tells: the addresses of all processes, and which is this one."""

    addresses: Sequence[str]  # host:port, by rank
    rank: int


@dataclass(frozen=True)
class Claim:
    """What one launcher tells this process; None where it tells nothing."""

    launcher: str
    rank: int
    world_size: int | None
    local_rank: int | None
    local_size: int | None
    agents: int | None = None  # of torchrun, one on each node
    text: str = ""

    @property
    def is_constant(self) -> bool:
        """Return whether all processes may have got it, such as what a shell has exported."""
        by_hand = self.launcher == "torchrun" and self.agents is None
        return by_hand or self.launcher in ("PMIx", TF_CONFIG)

    def agrees_with(self, other: "Claim") -> bool:
        """Return whether both give this process the same rank.

        Local ranks are compared when all ranks have met, because some ranks may see no mistake.
        """
        return self.rank == other.rank and (
            None in (self.world_size, other.world_size) or self.world_size == other.world_size
        )

    def is_started_by(self, outer: "Claim") -> bool:
        """Return whether the launcher ``outer`` may have started this one, and not this process."""
        if outer.world_size == 1:
            return True
        if self.launcher == "torchrun":
            return self.agents is not None and outer.world_size in (self.agents, None)
        # The daemons of MPI, one on each node. Slurm tells their number, not that of the ranks.
        return outer.launcher == "Slurm" and outer.local_size == 1


class ContradictionError(UserError):
    """The error for launchers that contradict each other; one rank, which ``speaks``, prints it."""

    def __init__(self, message: str, *, speaks: bool) -> None:
        super().__init__(message)
        self.speaks = speaks


def read_claims(environment: Environment) -> list[Claim]:
    """Return what each launcher tells this process, the innermost launcher first.

    Raises UserError where a variable is no rank or no number of ranks, or stands alone.
    """
    claims = [_read(names, environment) for names in LAUNCHERS if names.rank in environment]
    found = [claim for claim in claims if claim]
    if told := read_tf_config(environment):
        size = len(told.addresses)
        text = f"{TF_CONFIG} has process {told.rank} of {size}"
        found.append(Claim(TF_CONFIG, told.rank, size, None, None, text=text))
    if "SLURM_PROCID" in environment and not found:
        _refuse_batch_script(environment)
    return found


def read_tf_config(environment: Environment) -> TfConfig | None:
    """Return what TF_CONFIG tells; None where it names no cluster.

    The chief, if there is one, is the first process, and the workers follow. Raises UserError where
    it cannot be read, or this process is none of them.
    """
    text = environment.get(TF_CONFIG, "")
    try:
        told = json.loads(text or "{}")
        if not told.get("cluster"):
            return None
        cluster, task = told["cluster"], told["task"]
        chiefs, workers = ([*map(str, cluster.get(kind, ()))] for kind in ("chief", "worker"))
        rank = int(task["index"]) + (len(chiefs) if task["type"] == "worker" else 0)
        own = {"chief": chiefs, "worker": workers}[task["type"]][int(task["index"])]
        addresses = (*chiefs, *workers)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        addresses, rank, own = (), -1, ""
    if rank < 0 or addresses[rank] != own or not all(map(_ADDRESS.fullmatch, addresses)):
        raise UserError(
            f"{TF_CONFIG}={text[:80]}: expected "
            '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}, '
            "where the task is one of the workers, or the chief; fix: correct it, or unset it"
        )
    return TfConfig(addresses, rank)


_ADDRESS = re.compile(r"[^\s/]{1,253}:[0-9]{1,5}")


def reconcile(claims: Sequence[Claim], environment: Environment) -> Claim:
    """Return the place of this process by all ``claims``, of which there is one or more.

    Raises ContradictionError where they contradict each other, or do not tell how many ranks there
    are.
    """
    inner = claims[0]
    for outer in claims[1:]:
        if outer.world_size is None and outer.rank in (c.rank for c in claims if c is not outer):
            continue
        if not inner.agrees_with(outer) and not inner.is_started_by(outer):
            raise ContradictionError(
                f"two launchers contradict each other: {inner.text}, but {outer.text}; fix: start "
                "the ranks with one of them, and unset the variables of the other",
                speaks=_is_speaker(inner, outer),
            )
    same = [claim for claim in claims if inner.agrees_with(claim)]
    world_size = next((claim.world_size for claim in same if claim.world_size is not None), None)
    world_size = _compare_world_size(world_size, claims, environment)
    return replace(
        inner,
        world_size=world_size,
        local_rank=next((c.local_rank for c in same if c.local_rank is not None), None),
        local_size=next((c.local_size for c in same if c.local_size is not None), None),
    )


def _compare_world_size(told: int | None, claims: Sequence[Claim], environment: Environment) -> int:
    """Return the number of ranks; WORLD_SIZE may have been set by hand beside a launcher."""
    by_hand = None
    if "RANK" not in environment and "WORLD_SIZE" in environment:
        by_hand = _read_count(environment, "WORLD_SIZE")
    if told is None and by_hand is None:
        raise ContradictionError(
            f"{claims[0].text}, but no variable tells how many ranks there are; fix: export "
            "WORLD_SIZE with their number",
            speaks=claims[0].rank == 0,
        )
    if None not in (told, by_hand) and told != by_hand:
        raise ContradictionError(
            f"WORLD_SIZE={by_hand}, but {claims[0].text}; fix: unset WORLD_SIZE",
            speaks=claims[0].rank == 0,
        )
    world_size = told if told is not None else by_hand
    assert world_size is not None
    if claims[0].rank >= world_size:
        raise UserError(
            f"{claims[0].text}: ranks are numbered from 0 to {world_size - 1}; fix: unset what an "
            "earlier launcher has left, and start the ranks again"
        )
    return world_size


def _is_speaker(inner: Claim, outer: Claim) -> bool:
    """Return whether this process is the one among those of the inner launcher that prints.

    It is the first rank. What a shell has exported is the same everywhere, and a rank that has by
    chance that very rank sees no contradiction: then it is the next one.
    """
    live, other = (outer, inner) if inner.is_constant else (inner, outer)
    is_like_first = other.is_constant and replace(other, rank=live.rank).agrees_with(live)
    return live.rank == (1 if is_like_first and other.rank == 0 else 0)


def _read(names: Variables, environment: Environment) -> Claim | None:
    """Read one launcher's variables; return None where it did not start this process."""
    if names.launcher == "Slurm" and not {"SLURM_STEP_ID", "SLURM_STEPID"} & environment.keys():
        return None  # no srun has started it; the batch script has the variables too
    rank = _read_count(environment, names.rank, least=0)
    size_name = next((name for name in names.world_size if name in environment), "")
    if names.world_size and not size_name:
        raise UserError(
            f"{names.rank}={rank} is set, but {names.world_size[-1]} is not; fix: start the ranks "
            f"with one launcher, or unset {names.rank}"
        )
    local_size = (
        _read_slurm_local_size(environment)
        if names.launcher == "Slurm"
        else _read_optional(environment, names.local_size, least=1)
    )
    return Claim(
        names.launcher,
        rank,
        _read_count(environment, size_name) if size_name else None,
        _read_optional(environment, names.local_rank, least=0),
        local_size,
        _read_agents(environment) if names.launcher == "torchrun" else None,
        " ".join(f"{name}={environment[name]}" for name in (names.rank, size_name) if name),
    )


def _read_agents(environment: Environment) -> int | None:
    """Return the number of torchrun's agents; None where the variables were set by hand."""
    if "TORCHELASTIC_RUN_ID" not in environment:
        return None
    return _read_optional(environment, "GROUP_WORLD_SIZE", least=1)


def _refuse_batch_script(environment: Environment) -> None:
    tasks = _read_optional(environment, "SLURM_NTASKS", least=1)
    if tasks is not None and tasks > 1:
        raise UserError(
            f"the batch script of Slurm has started this process, so it is alone, but "
            f"SLURM_NTASKS={tasks}; fix: put srun before the command, or srun --ntasks=1 for one "
            "process"
        )


def _read_slurm_local_size(environment: Environment) -> int | None:
    """Return the tasks of the step on this node: ``2(x3),1`` are those of four nodes."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE")
    node = _read_optional(environment, "SLURM_NODEID", least=0)
    if text is None or node is None:
        return None
    for tasks, nodes in _parse_tasks(text):
        if node < nodes:
            return tasks
        node -= nodes
    raise UserError(
        f"SLURM_STEP_TASKS_PER_NODE={text} names no node {environment['SLURM_NODEID']} "
        "(SLURM_NODEID); fix: unset what an earlier step has left"
    )


def _parse_tasks(text: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:\(x([0-9]{1,7})\))?", part.strip())
        if not match:
            raise UserError(
                f"SLURM_STEP_TASKS_PER_NODE={text[:80]}: expected numbers of tasks, for example "
                "2(x3),1; fix: unset it, or start with srun"
            )
        yield int(match[1]), int(match[2] or 1)


def _read_optional(environment: Environment, name: str, least: int) -> int | None:
    return _read_count(environment, name, least) if name in environment else None


def _read_count(environment: Environment, name: str, least: int = 1) -> int:
    text = environment[name]
    if not re.fullmatch(r"[0-9]{1,7}", text.strip()) or int(text) < least:
        raise UserError(
            f"{name}={text[:40]}: expected a whole number from {least} to {MOST_RANKS - 1:,}; fix: "
            "unset it, and start the ranks with one launcher"
        )
    return int(text)
