"""Two ranks under each launcher, with the real programs where they are installed.

Debian: ``apt-get install openmpi-bin mpich slurm-wlm munge``. Both MPIs can be there.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cepheid.rules.host import ROOT
from tests.reference.launchers.cluster import find_obstacle, start_cluster

PROBE = [sys.executable, "-m", "tests.reference.launchers.probe"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
OPEN_MPI = ["mpirun.openmpi", "--oversubscribe", *(["--allow-run-as-root"] * (os.getuid() == 0))]
MPICH = ["mpirun.mpich"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if reason := find_obstacle():
        pytest.skip(reason)
    with start_cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def start(
    *command: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI", "OMPI_"))}
    environment = plain | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | (environment or {})
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=180, check=False
    )


def read(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return sorted(
        (json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")),
        key=lambda place: place["rank"],
    )


def list_places(places: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    assert len({tuple(place["address"]) for place in places}) == 1  # all find the same
    return [
        (place["launcher"], place["rank"], place["world_size"], place["local_rank"],
         place["local_size"])
        for place in places
    ]  # fmt: skip


def test_torchrun() -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    places = read(start(*TORCHRUN, "--standalone", "--nproc-per-node=2", *PROBE[1:]))
    assert list_places(places) == [("torchrun", 0, 2, 0, 2), ("torchrun", 1, 2, 1, 2)]


@pytest.mark.parametrize(("mpirun", "name"), [(OPEN_MPI, "Open MPI"), (MPICH, "MPICH")])
def test_mpi(mpirun: list[str], name: str) -> None:
    places = read(start(*mpirun, "-np", "2", *PROBE))
    assert list_places(places) == [(name, 0, 2, 0, 2), (name, 1, 2, 1, 2)]
    assert places[0]["address"][0] == "127.0.0.1"


@pytest.mark.parametrize("mpirun", [OPEN_MPI, MPICH])
def test_two_launchers_at_once_are_one_error(mpirun: list[str]) -> None:
    ended = start(*mpirun, "-np", "2", *PROBE, environment={"RANK": "1", "WORLD_SIZE": "4"})
    assert ended.returncode == 2
    assert (ended.stdout + ended.stderr).count("two launchers contradict each other") == 1


@pytest.mark.parametrize(
    ("nodes", "options", "places"),
    [
        (1, [], [("Slurm", 0, 2, 0, 2), ("Slurm", 1, 2, 1, 2)]),
        (2, [], [("Slurm", 0, 2, 0, 1), ("Slurm", 1, 2, 0, 1)]),
        (1, ["--mpi=pmi2"], [("MPICH", 0, 2, 0, 2), ("MPICH", 1, 2, 1, 2)]),
    ],
)
def test_slurm(
    cluster: dict[str, str], nodes: int, options: list[str], places: list[tuple[Any, ...]]
) -> None:
    ended = start("srun", f"--nodes={nodes}", "--ntasks=2", *options, *PROBE, environment=cluster)
    found = read(ended)
    assert list_places(found) == places
    assert found[0]["address"][0] == ("127.0.0.1" if nodes == 1 else "one")


def write_batch_script(folder: Path, *lines: str) -> Path:
    script = folder / "job.sh"
    script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    return script


def run_batch_script(cluster: dict[str, str], script: Path) -> str:
    output = script.with_suffix(".out")
    options = ["--wait", "--nodes=2", "--ntasks=4", "--overcommit", f"--output={output}"]
    start("sbatch", *options, str(script), environment=cluster)
    return output.read_text()


def test_a_batch_script_without_srun_is_told_so(cluster: dict[str, str], tmp_path: Path) -> None:
    printed = run_batch_script(cluster, write_batch_script(tmp_path, " ".join(PROBE)))
    assert "fix: put srun before the command" in printed


@pytest.mark.parametrize(("mpirun", "name"), [(OPEN_MPI, "Open MPI"), (MPICH, "MPICH")])
def test_mpi_within_slurm(
    cluster: dict[str, str], tmp_path: Path, mpirun: list[str], name: str
) -> None:
    if not shutil.which(mpirun[0]):
        pytest.skip(f"{mpirun[0]} is not installed")
    script = write_batch_script(tmp_path, " ".join([*mpirun, "-np", "4", *PROBE]))
    lines = run_batch_script(cluster, script).splitlines()
    places = sorted((json.loads(line) for line in lines), key=lambda place: place["rank"])
    assert list_places(places) == [
        (name, 0, 4, 0, 2), (name, 1, 4, 1, 2), (name, 2, 4, 0, 2), (name, 3, 4, 1, 2)
    ]  # fmt: skip
    assert places[0]["address"][0] == "one"


@pytest.mark.promise
@pytest.mark.parametrize("launcher", [[*TORCHRUN, "--nproc-per-node=2"], [*OPEN_MPI, "-np", "2"],
                                      [*MPICH, "-np", "2"]])  # fmt: skip
def test_the_ranks_meet(launcher: list[str]) -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    probe = PROBE[1:] if launcher[0] == TORCHRUN[0] else PROBE
    places = read(start(*launcher, *probe, "--meet"))
    assert [(place["rank"], place["node_size"]) for place in places] == [(0, 2), (1, 2)]


@pytest.mark.promise
@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        (["--nodes=2", "--ntasks=4"], [2] * 4, ""),
        (["--nodes=2", "--ntasks=4", "--distribution=cyclic"], [], "2 consecutive ranks"),
        (["--nodes=2", "--ntasks=3"], [], "different numbers of ranks (1, 2)"),
    ],
)
def test_the_ranks_of_two_nodes_meet(
    cluster: dict[str, str], options: list[str], sizes: list[int], message: str
) -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    here = {**cluster, "MASTER_ADDR": "127.0.0.1"}  # the names of the nodes are made up
    ended = start("srun", "--overcommit", *options, *PROBE, "--meet", environment=here)
    if message:
        assert ended.returncode == 2
        assert ended.stderr.count(message) == 1
        assert "Traceback" not in ended.stderr
        assert "frame #" not in ended.stderr
    else:
        assert [place["node_size"] for place in read(ended)] == sizes
