"""The templates of docs/cluster: a list of hosts, with a made-up ssh that stays on this machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cepheid.measure.engine.own_process import find_free_port
from cepheid.rules.installation import ROOT

HOSTS = ROOT / "docs" / "cluster" / "hosts.sh"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """With an ssh that runs what it is given right here, in its own place: it can be ended."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "exec $(echo "$*" | sed "s/^cd .* && //")"\n')
    ssh.chmod(0o755)
    return {**os.environ, "SSH": str(ssh), "MASTER_PORT": str(find_free_port()),
            "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}  # fmt: skip


@pytest.mark.parametrize("name", ["hosts.sh", "slurm.sh"])
def test_the_shell_reads_them(name: str) -> None:
    subprocess.run(["bash", "-n", str(HOSTS.with_name(name))], check=True)


def test_torchrun_has_the_binding_that_the_page_names() -> None:
    pytest.importorskip("torch", reason="torchrun comes with the extra torch")
    from torch.distributed.run import get_args_parser

    (option,) = (
        each for each in get_args_parser()._actions if "--numa-binding" in each.option_strings
    )
    page = (ROOT / "docs" / "scaling.md").read_text()
    (sentence,) = (line for line in page.splitlines() if "--numa-binding" in line)
    assert all(f"{mode}`" in sentence for mode in option.choices or ())


def test_two_hosts_describe_themselves_together(
    environment: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="several ranks need the extra torch")
    output = tmp_path / "with space" / "pair.json"
    command = [sys.executable, "-m", "cepheid.tools.describe_system", "--output", str(output)]
    line = ["bash", str(HOSTS), "127.0.0.1 localhost", "1", *command]
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(output.read_text())["nodes"] == 2


def test_a_rank_that_fails_ends_the_others(environment: dict[str, str]) -> None:
    program = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(3); time.sleep(60)"
    started = time.monotonic()
    line = ["bash", str(HOSTS), "127.0.0.1 localhost", "2", sys.executable, "-c", program]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - started < 30
