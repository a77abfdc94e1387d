"""Keras on several devices and in several processes computes what it computes on one device."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cepheid.measure.engine.own_process import find_free_port
from cepheid.rules.host import BACKEND_VARIABLE, ROOT
from tests.reference import need_keras

need_keras("torch", "galsim")  # the small definitions are those of the contract for torch

SECONDS = 1200  # beside other work
EIGHT = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
SCRIPT = "from tests.reference.keras.test_devices import main; main()"


def main() -> None:
    """Train some steps and evaluate; print losses, metrics, and what a log would say."""
    from cepheid.reference.keras.backend import read, start_ranks
    from cepheid.reference.session.frameworks import find_create
    from tests.test_keras_contract import configure, import_task

    name, data_root = sys.argv[1:]
    with start_ranks() as ranks:
        task = find_create(import_task(name))(configure(name, Path(data_root)), ranks)
        task.build()
        task.open_data()
        task.synchronize()
        losses = [float(read(task.step())) for _ in range(4)]
        assert ranks.broadcast(ranks.rank) == 0
        assert ranks.all_gather_object(ranks.rank) == list(range(ranks.world_size))
        found = {"losses": losses, "metrics": task.evaluate(), "is": dict(task.implementation())}
        print(json.dumps(found), flush=True)


@cache
def run_alone(backend: str, name: str, data_root: Path) -> dict[str, Any]:
    (found,) = run(backend, name, data_root, [{}])
    return found


def run(
    backend: str, name: str, data_root: Path, places: Sequence[Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Run ``main`` in a process for each of ``places``; return what each has found."""
    own = {"PYTHONPATH": str(ROOT), BACKEND_VARIABLE: backend, "OMP_NUM_THREADS": "1"}
    there = {**os.environ, **own}
    line = [sys.executable, "-c", SCRIPT, name, str(data_root)]
    pipe = subprocess.PIPE
    running = [
        subprocess.Popen(
            line, env={**there, **place}, cwd=ROOT, stdout=pipe, stderr=pipe, text=True
        )
        for place in places
    ]
    try:
        ended = [process.communicate(timeout=SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, error) in zip(running, ended, strict=True):
        assert process.returncode == 0, error
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


KINDS = {
    "eight devices": ("jax", 8),
    "two processes": ("jax", 2),
    "two processes of four devices": ("jax", 8),
    "two workers": ("tensorflow", 1),
    "two workers by TF_CONFIG": ("tensorflow", 1),
}
"""The backend, and the devices that the log has."""
SIMPLER = ("two processes", "two workers")  # what the kinds after them do, and less


def place_processes(kind: str) -> Sequence[Mapping[str, str]]:
    """Return what each process of a kind has in its environment."""
    if kind == "eight devices":
        return [EIGHT]
    ports = [find_free_port(), find_free_port()]
    if "TF_CONFIG" in kind:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
        tasks = [{"type": "worker", "index": index} for index in range(2)]
        return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]
    more = {"XLA_FLAGS": EIGHT["XLA_FLAGS"].replace("8", "4")} if "four" in kind else {}
    more |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
    return [{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", **more} for rank in ("0", "1")]


@pytest.mark.promise  # two or three fresh interpreters load the backend and compile
@pytest.mark.parametrize(
    "name",
    [
        "galaxy_shape",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("galaxy_bnn", "galaxy_vae", "chest_xray", "resnet50")
        ),
    ],
)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SIMPLER)) for kind in KINDS]
)
def test_what_is_shared_equals_one_device(name: str, kind: str, data_root: Path) -> None:
    backend, devices = KINDS[kind]
    pytest.importorskip(backend, reason="needs the extra of the backend")
    alone = run_alone(backend, name, data_root)
    places = place_processes(kind)
    for shared in run(backend, name, data_root, places):
        assert shared["is"]["ranks"] == len(places)
        assert shared["is"].get("devices", 1) == devices
        assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-4)
        assert shared["metrics"] == pytest.approx(alone["metrics"], rel=1e-3, abs=1e-4)
