"""kfac on two nodes of two ranks each, as a launcher starts them; and where memory is short."""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from cepheid.benchmarks.kfac import after_run
from cepheid.benchmarks.kfac.model import allocate
from cepheid.benchmarks.kfac.preconditioner import KfacPreconditioner
from cepheid.reference.run.config import configure
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.tools import run_benchmark
from tests import tiny
from tests.distributed import on_ranks
from tests.tasks import CountWaits, create, take_samples

NODES, PER_NODE = 2, 2
CPU = torch.device("cpu")
SIZES = {"train_samples": 16, "evaluation_samples": 21}


def _run_benchmark(arguments: list[str], per_node: int) -> list[tuple[int, int]]:
    """Run as one rank of a node of ``per_node``; return the numbers in each layer's factors."""
    rank = int(os.environ["RANK"])
    os.environ |= {"LOCAL_WORLD_SIZE": str(per_node), "LOCAL_RANK": str(rank % per_node)}
    after_run.PLAIN_TURNS = after_run.PLAIN_UPDATES = 1
    found: list[tuple[int, int]] = []
    attach = KfacPreconditioner.attach

    def attach_and_count(self: KfacPreconditioner, trainer: Any) -> None:
        attach(self, trainer)
        assert self.kfac is not None
        found.clear()
        for layer in self.kfac.layers:
            packed = sum(each.count_packed(triangle=True) for each in layer.statistics)
            found.append((packed, layer.shape[0] * layer.shape[1]))

    KfacPreconditioner.attach = attach_and_count  # type: ignore[method-assign]
    with mock.patch.object(run_benchmark, "end_rank"):  # it would end before it returns something
        run_benchmark.main(arguments)
    return found


def _read(output: Path) -> tuple[dict[str, float], dict[tuple[str, str], int], dict[str, Any]]:
    """The quality of the last evaluation, the bytes of the report, and the implementation."""
    (log,) = output.glob("results/*/*/result_*.txt")
    events = [json.loads(line.partition(" ")[2]) for line in log.read_text().splitlines()]
    quality = [each["metadata"]["metrics"] for each in events if each["key"] == "eval_accuracy"]
    (implementation,) = (each["value"] for each in events if each["key"] == "implementation")
    report = json.loads((log.parent / "report_0.json").read_text())
    tables = {table["title"]: table["rows"] for table in report["tables"]}
    sent = {(row["purpose"], row["level"]): row["bytes"] for row in tables.get("Bytes sent", ())}
    return quality[-1], sent, implementation


@pytest.mark.slow  # two runs, one of them on four ranks
def test_two_nodes_of_a_launcher_sum_in_two_levels(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number is sent once to the other node, and once from rank to rank within each node.

    That is said of sums and of what comes back. In one level three quarters of all that four ranks
    send would go to the other ranks, two thirds of it to the other node.
    """
    timing = {"eval_every_samples": 16, "max_samples": 16}
    tiny.install(
        tmp_path / "benchmarks", monkeypatch, "kfac", reachable=True,
        data=SIZES, data_digest=None, model={"width": 4}, timing=timing,
    )  # fmt: skip
    settings = ["precision=fp32", "threads=1", "global_batch_size=8", "kfac_stale=false"]
    two_level = [*settings, "all_reduce=two_level"]
    common = ["kfac", "--scale", "mini", "--runs", "1", "--seed", "4", "--data", str(data_root)]

    def run(ranks: int, chosen: list[str]) -> tuple[list[Any], Any]:
        output = tmp_path / str(ranks)
        sets = [part for each in chosen for part in ("--set", each)]
        counts = on_ranks(
            ranks, _run_benchmark, [*common, *sets, "--output", str(output)], min(ranks, PER_NODE)
        )
        return counts, _read(output)

    _, (alone, nothing, _) = run(1, settings)
    counts, (quality, sent, implementation) = run(NODES * PER_NODE, two_level)
    assert nothing == {}
    assert implementation["ranks"] == NODES * PER_NODE
    assert quality == pytest.approx(alone, rel=1e-3, abs=1e-3)

    packed, gradients = (sum(column) for column in zip(*counts[0], strict=True))
    for purpose, numbers in (("factors", packed), ("gradients", gradients)):
        assert sent[purpose, "between nodes"] == 4 * (NODES - 1) * numbers
        assert sent[purpose, "node"] == 4 * NODES * (PER_NODE - 1) * numbers


def test_a_tensor_that_fits_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", None)
    assert allocate((3, 4), CPU).tolist() == [[0.0] * 4] * 3


def test_a_tensor_that_does_not_fit_is_in_a_nameless_file_or_the_disk_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    has_little_memory(monkeypatch, tmp_path)
    tensor = allocate((256, 1024), CPU)
    assert not list(tmp_path.iterdir())
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert f"{tmp_path}/cepheid-" in maps.read_text(), "no file holds the tensor"
    assert not tensor.any()
    tensor[1:].copy_(torch.arange(1024.0))
    assert tensor.sum() == 255 * 1023 * 512
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2**40))
    with pytest.raises(UserError, match=r"GiB free, but 4096\.0 GiB .* fix: set TMPDIR"):
        allocate((2**20, 2**20), CPU)
    assert not os.listdir(tmp_path)


def has_little_memory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A megabyte, and this folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**20))


@pytest.mark.parametrize("stale", ["true", "false"])
def test_the_host_waits_twice_in_an_update(stale: str) -> None:
    """For what is finite and how far it has moved, and for what can be inverted."""
    settings = (f"kfac_stale={stale}", "compile=off", "precision=fp32", "threads=1")
    config = configure(
        definition.load("kfac", "mini"), seed=3, data_root=Path("none"), overrides=settings
    )
    task = create(config)
    task.build()
    take_samples(task, 8)
    task.model.train()
    for _ in range(2):
        task.step_on_noise(task.execution)
        with CountWaits() as waits:
            task.apply_gradients()
        assert 0 < waits.count <= 2
