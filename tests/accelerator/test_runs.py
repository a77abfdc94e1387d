"""Parts of a run with data: loader, warm-up, evaluation, checkpoint, energy, and a whole run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cepheid.reference.machine import energy
from cepheid.reference.machine.accelerators import DEVICE
from cepheid.reference.run import checkpoint
from cepheid.reference.torch.devices.kinds import find_device
from cepheid.reference.torch.ranks.distributed import TorchRanks
from tests import tasks
from tests.accelerator import PLACE, PLACES, Place, __main__, build, train
from tests.accelerator.test_steps import only_on_accelerator
from tests.test_benchmark_contract import configuration

PROCESSOR = torch.device("cpu")


@pytest.mark.parametrize("place", PLACES)
def test_the_warm_up_chooses_what_the_device_knows(place: Place) -> None:
    task = build("galaxy_shape", place, "precision=auto", "compile=auto", "micro_batch=auto")
    before = tasks.copy_weights(task)
    task.warm_up()
    chosen = task.execution
    assert chosen.precision in task.device.list_precisions()
    assert chosen.convolutions in task.device.list_convolutions()
    assert {chosen.compile, chosen.micro_batch}.isdisjoint({"auto"})
    tasks.assert_same(before, tasks.copy_weights(task), "warm-up")


@only_on_accelerator
@pytest.mark.parametrize("name", ["galaxy_shape", "resnet50", "chest_xray", "video_prediction"])
def test_batches_arrive_as_they_were_read(name: str, data_root: Path) -> None:
    """Through the threads that read ahead, pinned memory and an asynchronous copy."""
    config = configuration(name, data_root)
    of_processor, own = (
        tasks.build(config, TorchRanks(0, 1, place)) for place in (PROCESSOR, PLACE)
    )
    pairs = zip(tasks.take_batch(of_processor), tasks.take_batch(own), strict=True)
    assert all(torch.equal(one, other.cpu()) for one, other in pairs)
    read = [values for each in own.next_pieces() for values in (each.inputs, each.targets)]
    assert {values.is_pinned() for values in read} == {own.device.pins}


@only_on_accelerator
@pytest.mark.parametrize("name", ["galaxy_shape", "resnet50", "chest_xray", "video_prediction"])
def test_an_evaluation_finds_what_a_processor_finds(name: str, data_root: Path) -> None:
    config = configuration(name, data_root)
    of_processor, own = (
        tasks.build_and_train(config, TorchRanks(0, 1, place)).evaluate()
        for place in (PROCESSOR, PLACE)
    )
    assert own == pytest.approx(of_processor, rel=0.02, abs=0.02)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["galaxy_shape", "kfac"])
def test_a_checkpoint_resumes_on_a_processor(name: str, place: Place, tmp_path: Path) -> None:
    task = build(name, place)
    weights = train(task, 2)
    path = tmp_path / "weights.pt"
    checkpoint.save(path, task.state())
    resumed = build(name, PROCESSOR)
    resumed.restore(checkpoint.load(path))
    assert resumed.samples == task.samples
    for one, other in zip(resumed.model.parameters(), weights, strict=True):
        assert torch.equal(one, other)


@only_on_accelerator
def test_the_energy_of_the_device_is_counted() -> None:
    sensors = energy.find_sensors(has_gpu=True, used=[find_device(PLACE).sensor_keys])
    names = [counter.name for counter in sensors.counters]
    if not any(name.startswith("gpu") for name in names):
        pytest.skip(f"no counter of the accelerator: {'; '.join(sensors.missing)}")
    with energy.Meter(sensors) as meter:
        train(build("resnet50", PLACE), 20)
        find_device(PLACE).synchronize()
    assert meter.trace is not None
    joules = dict(zip(names, meter.trace.joules[-1], strict=True))
    assert any(value > 0 for name, value in joules.items() if name.startswith("gpu"))


def test_without_an_accelerator_all_that_would_be_tried_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(__main__, "find", lambda: ([], "none here"))
    assert __main__.main() == 2
    out, err = capsys.readouterr()
    assert "  not tried  two ranks train as one\n" in out
    assert err.startswith("first-gpu: none here; nothing was tried. `cepheid rehearse`")
    assert __main__.name_test("a.py::test_it_is_so[x_y-accelerator]") == "it is so: x_y"


@pytest.mark.parametrize("name", ["galaxy_shape", "galaxy_generation"])
@only_on_accelerator
def test_a_whole_run_is_one_that_the_checker_accepts(name: str, tmp_path: Path) -> None:
    environment = {**os.environ, DEVICE: "auto"}

    def call(*arguments: str) -> str:
        command = [sys.executable, "-m", "cepheid.tools.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    told = call("run", name, "--scale", "mini", "--runs", "1", "--output", str(tmp_path))
    device = find_device(PLACE).name
    assert f", on {device}" in told
    call("check", str(tmp_path))
    (log,) = tmp_path.rglob("result_0.txt")
    lines = [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]
    (how,) = (line["value"] for line in lines if line["key"] == "implementation")
    assert how["device"] == device
