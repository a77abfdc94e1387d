"""`cepheid run --framework keras`: in an installation without torch, and on several ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="needs the extra keras")
pytest.importorskip("torch", reason="the small command is that of the tests for torch")
pytest.importorskip("galsim", reason="needs the extra galsim")

from cepheid.rules.host import ROOT
from tests.tools.test_run_benchmark import FAST, environment, events

KERAS = ["galaxy_shape", *FAST, "--framework", "keras", "--runs", "1"]


@pytest.mark.promise  # a fresh interpreter loads TensorFlow; continuous integration runs it
def test_a_run_needs_no_torch_and_says_nothing_on_stderr(tmp_path: Path) -> None:
    arguments = [*KERAS, "--data", str(tmp_path / "data"), "--output", str(tmp_path / "out")]
    without = (
        "import sys; sys.modules['torch'] = None; from cepheid.tools import cli; cli.console()"
    )
    line = [sys.executable, "-c", without, "run", *arguments]
    there = {**os.environ, "PYTHONPATH": str(ROOT), **environment()}
    ended = subprocess.run(
        line, env=there, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert "all targets reached" in ended.stdout
    assert "Shear bias" in ended.stdout
    (log,) = (tmp_path / "out").glob("results/*-keras/galaxy_shape-mini-closed/result_0.txt")
    implementation = next(e["value"] for e in events(log) if e["key"] == "implementation")
    assert implementation["framework"].startswith("keras 3")  # type: ignore[index]
    assert len(list((tmp_path / "out" / "checkpoints").glob("*/*/run_0.npz"))) == 1


def test_several_ranks_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    ended = subprocess.run(
        [
            sys.executable, "-m", "cepheid.tools.cli", "run", *KERAS,
            "--output", str(tmp_path / "out"),
        ],
        env={**os.environ, **ranks, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "--framework keras runs in one process" in ended.stderr
    assert ended.stderr.count("\n") == 1
