"""`cepheid run --framework keras`: in an installation without torch, and on several ranks."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.reference import need_keras

need_keras("torch", "galsim")  # the small command is that of the tests for torch

from cepheid.measure.engine.own_process import find_free_port
from cepheid.rules.host import BACKEND_VARIABLE, KERAS_BACKENDS, ROOT
from tests.tools.test_run_benchmark import FAST, environment, events

KERAS = ["galaxy_shape", *FAST, "--framework", "keras", "--runs", "1"]
LOGS = {"TF_CPP_MIN_LOG_LEVEL": "3"}  # as for users: a test that loaded TensorFlow has 1 here


@pytest.mark.promise  # a fresh interpreter loads TensorFlow or JAX
@pytest.mark.parametrize(
    ("backend", "hidden", "name"),
    [("tensorflow", ("torch",), "-keras"), ("jax", ("torch", "tensorflow"), "-keras-jax")],
)
def test_a_run_needs_only_its_backend_and_says_nothing_on_stderr(
    backend: str, hidden: Sequence[str], name: str, tmp_path: Path
) -> None:
    pytest.importorskip(backend)
    arguments = [*KERAS, "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]
    ways = ["--set", "compile=on"] if backend == "jax" else []  # in place of FAST's
    arguments += ["--backend", backend, *ways]
    hide = [f"sys.modules['{each}'] = None" for each in hidden]
    without = "; ".join(["import sys", *hide, "from cepheid.tools import cli", "cli.console()"])
    line = [sys.executable, "-c", without, "run", *arguments]
    there = {**os.environ, "PYTHONPATH": str(ROOT), **environment(), **LOGS}
    ended = subprocess.run(line, env=there, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert "all targets reached" in ended.stdout
    assert "run 0: report:" in ended.stdout
    (log,) = (tmp_path / "out").glob(f"results/*{name}/galaxy_shape-mini-closed/result_0.txt")
    implementation = next(e["value"] for e in events(log) if e["key"] == "implementation")
    framework = implementation["framework"]  # type: ignore[index]
    below = version({"tensorflow": "tensorflow_cpu"}.get(backend, backend))
    assert framework == f"keras {version('keras')} on {backend} {below}"
    assert len(list((tmp_path / "out" / "checkpoints").glob("*/*/run_0.npz"))) == 1


@pytest.mark.promise  # two fresh interpreters load the backend
@pytest.mark.parametrize("backend", KERAS_BACKENDS)
def test_two_processes_make_one_run(backend: str, tmp_path: Path) -> None:
    pytest.importorskip(backend)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port()), "WORLD_SIZE": "2"}
    there = {**os.environ, "PYTHONPATH": str(ROOT), **environment(), **place, **LOGS}
    line = [sys.executable, "-m", "cepheid.tools.cli", "run", "galaxy_shape", "--scale", "mini",
            "--framework", "keras", "--backend", backend, "--set", "precision=fp32", "--runs", "1",
            "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]  # fmt: skip
    running = [
        subprocess.Popen(
            line,
            env={**there, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        said, errors = zip(*(process.communicate(timeout=600) for process in running), strict=True)
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], errors
    assert "all targets reached" in said[0]
    assert backend == "jax" or errors == ("", "")
    (log,) = (tmp_path / "out").glob("results/*/galaxy_shape-mini-closed/result_0.txt")
    implementation = next(e["value"] for e in events(log) if e["key"] == "implementation")
    assert implementation["ranks"] == 2  # type: ignore[index]


GALAXIES = [f"tests/benchmarks/test_{each}_keras.py" for each in ("galaxies", "galaxy_tasks")]


@pytest.mark.promise  # minutes: the networks are traced again
def test_what_holds_on_tensorflow_holds_on_jax() -> None:
    pytest.importorskip("jax")
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    line += ["-m", "not slow and not promise", "tests/test_keras_contract.py", *GALAXIES]
    there = {**os.environ, BACKEND_VARIABLE: "jax", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(line, cwd=ROOT, env=there, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout
