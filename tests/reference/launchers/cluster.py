"""A Slurm of two virtual nodes on this machine, which ends with the test. It needs root."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cepheid.measure.engine.own_process import find_free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
START_SECONDS = 20.0
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmdLogFile={folder}/slurmd.%n.log
StateSaveLocation={folder}/state
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def find_obstacle() -> str:
    """Return why no cluster can be started here, or nothing."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=PATHS)]
    if absent:
        return f"{absent[0]} is not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "Slurm with virtual nodes needs root"


@contextmanager
def start_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment in which srun and sbatch find a cluster with the nodes one and two."""
    folder.chmod(0o755)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    ports = [find_free_port() for _ in range(3)]
    configuration.write_text(
        CONFIGURATION.format(host=socket.gethostname(), folder=folder, ports=ports)
    )
    environment = {**os.environ, "SLURM_CONF": str(configuration), "PATH": PATHS}
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file")]
    munge += [f"--key-file={key}", f"--seed-file={folder}/munge.seed", "--foreground", "--force"]
    daemons = [["munged", *munge], ["slurmctld", "-D", "-c"]]
    daemons += [["slurmd", "-D", "-N", node] for node in ("one", "two")]
    started = []
    try:
        with open(folder / "daemons.log", "wb") as log:
            for daemon in daemons:
                started.append(
                    subprocess.Popen(daemon, env=environment, stdout=log, stderr=log, cwd=folder)
                )
                time.sleep(0.3)
        _wait_for_nodes(environment, folder)
        yield environment
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_nodes(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        idle = subprocess.run(
            ["sinfo", "--noheader", "--states=idle", "--format=%D"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if idle.stdout.strip() == "2":
            return
        time.sleep(0.2)
    raise AssertionError(f"the nodes did not come:\n{(folder / 'daemons.log').read_text()}")
