"""`cepheid describe-system` on one process and on ranks of different machines."""

import io
import json
import os
import platform
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="several ranks need the extra torch")

from cepheid.reference.machine import accelerators, hardware, system
from cepheid.reference.machine.accelerators import Accelerators
from cepheid.reference.torch import backend
from cepheid.reference.torch.devices.kinds import Processor
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.documents import FILL_IN, find_schema_problem
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools import describe_system
from tests import assert_refused
from tests.compliance.asserting import Patch, Printed, call_tool
from tests.distributed import on_ranks

H200 = Accelerators(8, "NVIDIA H200")


@pytest.fixture(autouse=True)
def _short_kernels(monkeypatch: Patch) -> None:
    monkeypatch.setattr(backend, "SECONDS", 0.0)
    monkeypatch.setattr(Processor, "matrix_side", 64)
    monkeypatch.setattr(Processor, "copied_bytes", 2**16)


def test_this_machine(capsys: Printed) -> None:
    assert describe_system.main(["--submitter", "acme"]) == 0
    printed = capsys.readouterr()
    described = json.loads(printed.out)
    assert find_schema_problem(described, "system") is None
    assert described["submitter"] == "acme"
    assert described["software"]["python"] == platform.python_version()
    assert described["notes"].startswith(FILL_IN)
    assert "notes: what else it takes" in printed.err
    assert "interconnect" not in printed.err  # of one node


def test_a_place_that_is_taken_or_cannot_be_written(tmp_path: Path, capsys: Printed) -> None:
    place = tmp_path / "systems" / "box.json"
    assert describe_system.main(["--output", str(place)]) == 0
    assert json.loads(place.read_text())["system"] == "box"
    assert "submitter: the name of who submits" in capsys.readouterr().out
    before = place.read_bytes()
    assert_refused("already exists", describe_system.main, ["--output", str(place)])
    assert place.read_bytes() == before
    assert [path.name for path in place.parent.iterdir()] == ["box.json"]
    (tmp_path / "taken").touch()
    with pytest.raises(UserError, match="cannot write there"):
        describe_system.main(["--output", str(tmp_path / "taken" / "box.json")])


@pytest.mark.parametrize("name", ["box", "-x.json", "a b.json", "\x1b[31m.json", ".json"])
def test_names_that_a_system_cannot_have_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected <system>\.json"):
        describe_system.main([f"--output={tmp_path / name}"])
    assert list(tmp_path.iterdir()) == []


def _describe_on_this_rank(output: Path, memories_gib: list[float]) -> tuple[int, str]:
    """As on a machine of its own, with that much memory."""
    rank = int(os.environ["RANK"])
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    memory_gib = memories_gib[rank]
    told = {"processor": "A", "processor_cores_per_node": 2, "memory_gib_per_node": memory_gib}
    codes: list[int] = []
    printed = io.StringIO()
    with (
        patch.object(platform, "node", lambda: f"node{rank}"),
        patch.object(hardware, "read_hardware", lambda data: told),
        patch("cepheid.tools.describe_system.end_rank", codes.append),
        redirect_stdout(printed),
    ):
        describe_system.main(["--output", str(output)])
    return codes[0], printed.getvalue()


@pytest.mark.parametrize(("memories_gib", "code"), [([8.0, 8.0], 0), ([8.0, 16.0], 1)])
def test_two_nodes(memories_gib: list[float], code: int, tmp_path: Path) -> None:
    output = tmp_path / "pair.json"
    first, second = on_ranks(2, _describe_on_this_rank, output, memories_gib)
    assert (first[0], second[0]) == (code, code)
    assert second[1] == ""
    differ = "the nodes differ in memory_gib_per_node: 8.0 (node0), 16.0 (node1)"
    assert (differ in first[1]) == bool(code)
    described: dict[str, Any] = json.loads(output.read_text())
    assert (described["system"], described["nodes"]) == ("pair", 2)
    assert "interconnect" in described


def test_peaks_are_measured_and_those_of_a_known_device_are_added(capsys: Printed) -> None:
    described = json.loads(call_tool(describe_system.main, []))
    assert find_schema_problem(described, "system") is None
    assert described["peak_tflops"]["fp32"]["measured"] > 0
    assert described["memory_gb_per_second"]["measured"] > 0
    assert "peak_tflops" not in json.loads(call_tool(describe_system.main, ["--no-peaks"]))
    with (
        patch.object(system, "find_accelerators", lambda: H200),
        patch.object(TorchRanks, "accelerator", H200.name),
        patch.object(TorchRanks, "usable", 4),
    ):
        assert describe_system.main(["--no-peaks"]) == 0
    printed = capsys.readouterr()
    described = json.loads(printed.out)
    assert (described["accelerator"], described["accelerators_per_node"]) == (H200.name, 4)
    assert "cannot use, and this leaves out: 4 × NVIDIA H200" in printed.err
    assert described["peak_tflops"]["bf16"] == {"datasheet": 989.4}
    assert described["memory_gb_per_second"] == {"datasheet": 4800}


def test_without_torch_no_peaks_are_measured_and_a_message_says_so() -> None:
    code = "import sys; sys.modules['torch'] = None\n"
    code += "from cepheid.tools import describe_system; describe_system.main([])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "no peaks were measured: torch is not installed" in done.stderr
    described = json.loads(done.stdout)
    assert find_schema_problem(described, "system") is None
    assert "peak_tflops" not in described


def test_what_torch_cannot_use_is_only_listed(capsys: Printed, monkeypatch: Patch) -> None:
    monkeypatch.setattr(accelerators, "find_nvidia", lambda: H200)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CEPHEID_DEVICE", "")
    assert describe_system.main(["--no-peaks"]) == 0
    printed = capsys.readouterr()
    described = json.loads(printed.out)
    assert (described["accelerator"], described["accelerators_per_node"]) == (None, 0)
    assert f"torch {torch.__version__} cannot use, and this leaves out: 8 × NVI" in printed.err


def test_a_device_without_room_for_the_kernels_is_described(capsys: Printed) -> None:
    def fail(device: object) -> None:
        raise RuntimeError("out of memory\nand much more")

    with patch.object(backend, "measure_peaks", fail):
        assert describe_system.main([]) == 0
    printed = capsys.readouterr()
    assert "peak_tflops" not in json.loads(printed.out)
    assert "no peaks were measured on the processors: out of memory\n" in printed.err
