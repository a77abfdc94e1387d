"""The place of a process by the variables of real launchers, and the nodes of all ranks."""

import json
from contextlib import suppress
from typing import Any

import pytest

from cepheid.reference.machine.launchers import ContradictionError
from cepheid.reference.machine.placement import (
    Placement,
    Seat,
    decode_seat,
    find_address,
    find_first_host,
    find_placement,
    find_seat,
    read_placement,
    seat_rank,
)
from cepheid.rules.errors import UserError
from tests import assert_raises, assert_refused

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
}  # fmt: skip
BY_HAND = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_RANK": "3", "PMIX_NAMESPACE": "1773076481",
}  # fmt: skip
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1", "SLURM_JOB_ID": "71",
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[01-02]",
    "SLURM_JOB_NODELIST": "node[01-02]",
}  # fmt: skip
PMI2 = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_JOBID": "71.0"}  # srun --mpi=pmi2
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "71",
         "SLURM_JOB_NODELIST": "node[01-02]"}  # fmt: skip
AGENT = {**SLURM, "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2",
         "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}  # fmt: skip
# mpirun of MPICH hands the batch script's SLURM_NTASKS to the ranks.
DAEMON = {**AGENT, "SLURM_NTASKS": "4"}


def tf_config(kind: Any = "worker", index: Any = 3, **cluster: Any) -> dict[str, str]:
    """What TensorFlow's guides tell to export, here of four workers unless others are given."""
    workers = {"worker": [f"host{number}:1234{number}" for number in range(4)]}
    told = {"cluster": cluster or workers, "task": {"type": kind, "index": index}}
    return {"TF_CONFIG": json.dumps(told)}


WITH_CHIEF = {"chief": ["a:1"], "worker": ["b:2", "c:3", "d:4"]}


@pytest.mark.parametrize(
    ("environment", "launcher", "local_rank", "local_size"),
    [
        (TORCHRUN, "torchrun", 1, 2),
        (BY_HAND, "torchrun", 1, None),
        (OPEN_MPI, "Open MPI", 1, 2),
        (MPICH, "MPICH", 1, 2),
        (SLURM, "Slurm", 1, 2),
        ({**SLURM, "PMIX_RANK": "3"}, "Slurm", 1, 2),
        ({**SLURM, **PMI2}, "MPICH", 1, 2),
        ({**SLURM, "WORLD_SIZE": "4"}, "Slurm", 1, 2),
        ({**OPEN_MPI, "RANK": "3", "WORLD_SIZE": "4"}, "torchrun", 1, 2),
        (PMI2, "MPICH", None, None),
        ({"PMIX_RANK": "3", "WORLD_SIZE": "4"}, "PMIx", None, None),
        ({**BATCH, **TORCHRUN}, "torchrun", 1, 2),
        ({**BATCH, **OPEN_MPI}, "Open MPI", 1, 2),
        ({**AGENT, **TORCHRUN}, "torchrun", 1, 2),
        ({**AGENT, "PMIX_RANK": "1", **TORCHRUN}, "torchrun", 1, 2),
        ({"PMIX_RANK": "1", **TORCHRUN}, "torchrun", 1, 2),
        ({**DAEMON, **OPEN_MPI}, "Open MPI", 1, 2),
        ({**DAEMON, **MPICH}, "MPICH", 1, 2),
        (tf_config(), "TF_CONFIG", None, None),
        (tf_config(index=2, **WITH_CHIEF), "TF_CONFIG", None, None),
        ({**tf_config(), **SLURM}, "Slurm", 1, 2),  # they agree
        ({**tf_config(), **BY_HAND}, "torchrun", 1, None),
        ({**tf_config("chief", 0, chief=["a:1"]), **OPEN_MPI}, "Open MPI", 1, 2),  # of one process
        ({**tf_config(index=1, worker=["a:1", "b:2"]), **TORCHRUN}, "torchrun", 1, 2),  # agents
    ],
)
def test_rank_three_of_four(
    environment: dict[str, str], launcher: str, local_rank: int | None, local_size: int | None
) -> None:
    assert read_placement(environment) == Placement(3, 4, local_rank, local_size, launcher)


@pytest.mark.parametrize(
    "environment",
    [{}, {"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, {**BATCH, "SLURM_NTASKS": "1"},
     {"WORLD_SIZE": "8"}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}],
)  # fmt: skip
def test_no_launcher_has_started_this_process(environment: dict[str, str]) -> None:
    assert read_placement(environment) == Placement(0, 1, 0, 1, "")


def test_the_size_of_each_node_of_a_step() -> None:
    uneven = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}
    sizes = [read_placement({**uneven, "SLURM_NODEID": str(node)}).local_size for node in range(4)]
    assert sizes == [2, 2, 2, 1]
    assert_refused("names no node 4", read_placement, {**uneven, "SLURM_NODEID": "4"})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "2"},
         "RANK=0 WORLD_SIZE=2, but OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4"),
        ({**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "4"}, "two launchers contradict"),
        ({**SLURM, **TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "1"},
         "two launchers contradict"),
        ({**SLURM, **OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2"}, "two launchers contradict"),
        ({**SLURM, **MPICH, "PMI_RANK": "2"}, "two launchers contradict"),
        ({**SLURM, "PMIX_RANK": "2"}, "PMIX_RANK=2; fix"),
        ({**SLURM, "WORLD_SIZE": "8"}, "WORLD_SIZE=8, but SLURM_PROCID=3 .*fix: unset WORLD_SIZE"),
        ({"PMIX_RANK": "3"}, "PMIX_RANK=3, but no variable tells how many ranks"),
        ({**SLURM, **tf_config(index=2)}, "but TF_CONFIG has process 2 of 4"),
        ({**OPEN_MPI, **tf_config(worker=["a:1"] * 4 + ["b:2"])}, "TF_CONFIG has process 3 of 5"),
    ],
)  # fmt: skip
def test_launchers_that_contradict_each_other(environment: dict[str, str], message: str) -> None:
    assert_raises(ContradictionError, message, read_placement, environment)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (BATCH, "the batch script .* SLURM_NTASKS=4; fix: put srun before"),
        ({"RANK": "0"}, "RANK=0 is set, but WORLD_SIZE is not"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not"),
        ({**BY_HAND, "RANK": "4"}, "RANK=4 WORLD_SIZE=4: ranks are numbered from 0 to 3"),
        ({**BY_HAND, "RANK": "-1"}, "RANK=-1: expected a whole number from 0"),
        ({**BY_HAND, "WORLD_SIZE": "0"}, "WORLD_SIZE=0: expected a whole number from 1"),
        ({**BY_HAND, "WORLD_SIZE": "9" * 99}, "WORLD_SIZE=9"),
        ({**BY_HAND, "LOCAL_RANK": "one"}, "LOCAL_RANK=one: expected"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2x2"}, "TASKS_PER_NODE=2x2: expected"),
        *(
            ({"TF_CONFIG": text}, "TF_CONFIG=.*fix: correct it, or unset it")
            for text in (
                "here", "[1]", '"text"', "7", '{"cluster": 7}', '{"cluster": {"worker": 7}}',
                "[" * 9999, '{"cluster": {"worker": ["a:1"]}}',
                '{"cluster": {"worker": ["a:1"]}, "task": []}',
            )
        ),
        *(
            (tf_config(*task, **cluster), "TF_CONFIG=.*where the task is one of the workers")
            for task, cluster in (
                (("worker", 4), {}), (("worker", -1), {}), (("worker", "x"), {}),
                (("worker", None), {}), (("ps", 0), {}), (("chief", 0), {}), (([], 0), {}),
                (("evaluator", 0), {}),
                *((("worker", 0), {"worker": workers}) for workers in (
                    ["a"], ["a:1", "b:x"], [None], "a:1", ["http://a/b:1"])),
            )
        ),
    ],
)  # fmt: skip
def test_incomplete_and_wrong_variables_are_refused(
    environment: dict[str, str], message: str
) -> None:
    assert_refused(message, read_placement, environment)


@pytest.mark.parametrize("exported", ["0", "1", "2", "7"])
@pytest.mark.parametrize("world_size", ["4", "8"])
def test_one_rank_speaks_for_all(
    exported: str, world_size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cepheid.reference.machine.placement.LINGER_SECONDS", 0)
    speakers = []
    for rank in range(4):
        for name, value in {**OPEN_MPI, "RANK": exported, "WORLD_SIZE": world_size}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        monkeypatch.setenv("PMIX_RANK", str(rank))
        with suppress(SystemExit):
            try:
                find_placement()
            except UserError:
                speakers.append(rank)
    assert len(speakers) == 1


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("node[01-03,7]", "node01"),
        ("node[5]", "node5"),
        ("rack[1-2]node[08,9],login", "rack1node08"),
        ("a,b[1-2]", "a"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert find_first_host(nodes) == first


@pytest.mark.parametrize(
    ("environment", "host"),
    [
        (SLURM, "node01"),
        ({**SLURM, "SLURM_STEP_NODELIST": "node02"}, "node02"),
        ({**DAEMON, "SLURM_STEP_NODELIST": "node02", **OPEN_MPI}, "node01"),
        ({**BATCH, **MPICH}, "node01"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "127.0.0.1"),
        ({**MPICH, "MPI_LOCALNRANKS": "4"}, "127.0.0.1"),
        ({**SLURM, "MASTER_ADDR": "there"}, "there"),
        ({**SLURM, **tf_config(), "MASTER_ADDR": "there"}, "there"),
        (tf_config(), "host0"),
        ({**SLURM, **tf_config()}, "host0"),
    ],
)
def test_the_launcher_tells_where_to_meet(environment: dict[str, str], host: str) -> None:
    found, port = find_address(read_placement(environment), environment)
    assert found == host
    assert 10_000 <= port < 30_000
    assert find_address(read_placement(environment), {**environment, "MASTER_PORT": "5"})[1] == 5


def test_each_job_has_its_own_port() -> None:
    places = [{**SLURM, "SLURM_STEP_ID": str(step)} for step in range(20)]
    assert len({find_address(read_placement(place), place)[1] for place in places}) == 20


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (BY_HAND, "MASTER_ADDR is not set, although there are 4 ranks; fix: export"),
        ({**BY_HAND, "MASTER_ADDR": "there"}, "MASTER_PORT is not set"),
        (OPEN_MPI, r"MASTER_ADDR is not set.*\(mpirun -x MASTER_ADDR=HOST"),
        (MPICH, r"MASTER_ADDR is not set.*\(mpirun -genv MASTER_ADDR HOST"),
        ({**BY_HAND, "MASTER_ADDR": "there", "MASTER_PORT": "many"}, "MASTER_PORT=many: expected"),
        ({**BY_HAND, "MASTER_ADDR": "there", "MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
    ],
)
def test_ranks_without_a_meeting_place_are_refused(
    environment: dict[str, str], message: str
) -> None:
    assert_refused(message, find_address, read_placement(environment), environment)


# Nodes: by the launcher's word, or by the names of the hosts --------------------------------------


Told = list[tuple[int | None, int | None]]


def seats(hosts: str, told: Told | None = None) -> list[Seat]:
    """Return one seat for each letter, which names host and machine."""
    told = told or [(None, None)] * len(hosts)
    return [Seat(host, f"boot-{host}", *each) for host, each in zip(hosts, told, strict=True)]


def arrange(these: list[Seat]) -> Told:
    """Return local rank and ranks per node of all ranks."""
    places = [
        seat_rank(Placement(rank, len(these), seat.local_rank, seat.local_size), these)
        for rank, seat in enumerate(these)
    ]
    return [(place.local_rank, place.local_size) for place in places]


def driving(*accelerators: str) -> list[Seat]:
    """Return seats of one node; each string names what its rank may use, one letter each."""
    return [Seat("a", "boot", None, None, tuple(each)) for each in accelerators]


OF_TWO: Told = [(0, 2), (1, 2)] * 2
OF_THREE: Told = [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("these", "places"),
    [
        (seats("aabb"), OF_TWO),
        (seats("aaa"), OF_THREE),
        (seats("ab"), [(0, 1), (0, 1)]),
        (seats("aabb", [(0, None), (1, None)] * 2), OF_TWO),
        # Machines of the same name are two nodes.
        ([Seat("localhost", machine, None, None) for machine in "xxyy"], OF_TWO),
        # The launcher's word counts on virtual nodes and in containers.
        (seats("aaaa", OF_TWO), OF_TWO),
        ([Seat(host, "boot", *OF_TWO[rank]) for rank, host in enumerate("abcd")], OF_TWO),
        # Each sees all accelerators, or the launcher has chosen one for each, or there are none.
        (driving("xy", "xy"), OF_TWO[:2]),
        (driving("x", "y", "z"), OF_THREE),
        (driving("", ""), OF_TWO[:2]),
    ],
)
def test_nodes_are_those_of_the_launcher_or_of_hosts(these: list[Seat], places: Told) -> None:
    assert arrange(these) == places


@pytest.mark.parametrize(
    ("these", "message"),
    [
        (seats("aab"), r"different numbers of ranks \(a: 2, b: 1\)"),
        (seats("abab"), r"ranks on a are not consecutive \(0, 2, …\).*--distribution=block"),
        (seats("aabb", [*OF_TWO[:3], (2, 2)]), r"rank 3 \(b\) is local rank 2 of 2 ranks"),
        (seats("aab", [*OF_TWO[:2], (0, 1)]), r"different numbers of ranks \(1, 2\)"),
        (seats("aab", OF_TWO[:3]), "3 ranks do not fill nodes of 2"),
        (seats("abab", sorted(OF_TWO)), r"rank 1 \(b\) is local rank 0 of 2.*block"),
        (seats("abcd", OF_TWO), r"ranks 0 \(a\) and 1 \(b\) share a node"),
        (seats("aabb", [(0, None)] * 4), r"rank 1 \(a\) is local rank 0, .* expected local rank 1"),
        (seats("aaaa", [(None, 2)] * 4), r"rank 0 \(a\) is on a node of 2"),
        (driving("x", "x"), r"ranks 0 and 1 \(a\) would drive the same .* see 1; fix: .*=cpu"),
        (driving("xy", "xy", "xy"), r"ranks 0 and 2 .* 3 ranks on a node see 2"),
        (driving("xy", ""), r"rank 0 \(a\) has an accelerator and rank 1 \(a\) has none"),
    ],
)
def test_impossible_nodes_are_refused(these: list[Seat], message: str) -> None:
    raised = set()
    for rank in range(len(these)):
        with pytest.raises(UserError, match=message) as caught:
            seat_rank(Placement(rank, len(these)), these)
        raised.add(str(caught.value))
    assert len(raised) == 1  # all ranks raise the same, so that one of them can print it


def test_a_seat_travels_as_json() -> None:
    seat = find_seat(Placement(1, 2, 1, None), ("GPU-1", "GPU-2"))
    assert decode_seat(seat.encode()) == seat
    assert (seat.local_rank, seat.local_size) == (1, None)
