"""`cepheid measure speed`: fair turns, a harness that costs next to nothing, wrong use."""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from cepheid.measure.engine.noise import SYNTHETIC, draw_step
from cepheid.measure.engine.turns import configure_open, make_task
from cepheid.measure.studies.speed import hosts, parts, profiles, sharing, speed
from cepheid.reference.machine import placement
from cepheid.reference.run.config import configure
from cepheid.reference.torch import warm_up
from cepheid.reference.torch.ranks.distributed import start_ranks
from cepheid.rules import definition
from cepheid.rules.definition import Block
from cepheid.rules.errors import UserError
from cepheid.tools.measure.__main__ import main
from tests import tiny
from tests.distributed import on_ranks
from tests.reference.run.scripted import ScriptedTask

MINI = definition.load("galaxy_shape", "mini")


class IdleTask(ScriptedTask):
    """Does nothing, so that only the loop around it is left to measure."""

    model = SimpleNamespace(train=lambda: None)

    def __init__(self) -> None:
        super().__init__([])
        self.samples, self.evaluations = 0, 0

    def implementation(self) -> dict[str, Any]:
        return {"framework": "none", "device": "cpu", "precision": "float32", "ranks": 1}

    def step(self) -> None:
        self.samples += 32

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        while self.samples < block.samples:
            self.step()
            on_samples(self.samples)
        return 0.5

    def evaluate(self) -> dict[str, float]:
        self.evaluations += 1
        return {"e_rmse": 0.2, "nll": 0.0, "coverage_68": 0.7, "coverage_95": 0.95}


def test_the_harness_takes_less_than_a_hundredth_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from cepheid.tools.console.terminal import RunDisplay

    # Processor time, because other work on the machine stretches wall-clock time.
    monkeypatch.setattr(parts, "time", SimpleNamespace(perf_counter=time.process_time))
    short = parts.shorten_definition(MINI, 2)
    config = replace(configure(short, seed=1))
    task = IdleTask()
    steps = short.timing.max_samples / 32
    best = float("inf")
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, force_terminal=True)
        for _ in range(5):
            loop = parts.time_run_loop(task, config, RunDisplay(short, console))
            best = min(best, loop.harness_seconds)
            assert 0.5 < loop.harness_share <= 1  # the task takes next to nothing
    assert task.evaluations == 2 * 5
    # A step of 32 samples takes 10 ms and more on every CPU that we have seen.
    assert best / steps < 0.01 * 0.010, f"{best / steps * 1e6:.0f} µs for each step"


def test_measurements_are_listed_with_why_some_are_not_possible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["speed", "galaxy_bnn", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    of_all = ["step", "profile", "harness", "framework", "input", "memory"]
    assert names == [*of_all, "drawing", "shared"]
    assert lines[0].endswith("(plain.py).")
    assert lines[1].endswith("(only on request)")
    assert lines[2].endswith("timed loop, run log and display.")
    assert main(["speed", "kfac", "--list"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("(not possible: benchmarks/kfac/plain.py is missing)")
    picked = speed.pick_measurements(definition.load("kfac", "mini"), ())
    assert list(picked) == ["harness", "memory"]
    short = parts.shorten_definition(MINI, 1)
    assert len(list(short.schedule(32))) == 1
    assert not short.is_reached_by({"e_rmse": 0.0, "nll": -1e6})


def test_all_of_it_on_a_few_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    data = {"train_samples": 16, "evaluation_samples": 5}
    timing = {"eval_every_samples": 16, "max_samples": 32}
    folder = tmp_path / "benchmarks"
    tiny.install(folder, monkeypatch, "galaxy_shape", data=data, timing=timing)
    monkeypatch.setattr(parts, "STEPS", 1)
    with contextlib.chdir(tmp_path):
        code = main(
            ["speed", "galaxy_shape", "--rounds", "3", "--only", "step", "--only", "harness",
             "--set", "global_batch_size=4", "--set", "compile=off", "--output", "speed.json"]
        )  # fmt: skip
    assert code == 0
    printed = capsys.readouterr().out
    assert "times as fast" in printed
    assert "outside the task's code" in printed
    written = json.loads((tmp_path / "speed.json").read_text())
    assert len(written["step"]["baseline"]["seconds"]) == 3
    assert written["step"]["ratio_of_medians"] > 0
    assert written["implementation"]["training_step"] == "eager"


@pytest.mark.promise  # each side takes seconds, also of a tiny definition
def test_generation_against_plain_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("galsim", reason="needs the extra galsim")
    data = {"train_samples": 8, "evaluation_samples": 4}
    images = {"counts": [1, 3, 20], "repetitions": [1, 1, 1], "warm_up_images": 4}
    folder = tmp_path / "benchmarks"
    tiny.install(folder, monkeypatch, "galaxy_generation", data=data, generation=images)
    only = ["--only", "sampling", "--only", "decoding", "--only", "generation"]
    with contextlib.chdir(tmp_path):
        code = main(
            ["speed", "galaxy_generation", "--rounds", "3", *only, "--set", "compile=off",
             "--output", "speed.json"]
        )  # fmt: skip
    assert code == 0
    assert capsys.readouterr().out.count("times as fast") == 2 * 9
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written["sampling"]["20"]["ratio_of_medians"] > 1
    assert written["decoding"].keys() == {"1", "3", "20"}


@pytest.mark.parametrize(
    "name", [name for name in definition.names() if name != "galaxy_generation"]
)
def test_steps_on_noise_need_no_dataset(name: str, tmp_path: Path) -> None:
    """The share of a rank comes in pieces whose weights add up, of the tensors of one piece."""
    overrides = ["precision=fp32", "compile=off"]
    config = configure_open(definition.load(name, "mini"), overrides=overrides, data_root=tmp_path)
    is_given = name in ("chest_xray", "mask_rcnn")  # weights, which the warm-up leaves out
    with start_ranks() as ranks:
        task = make_task(config, ranks, is_warm=is_given, inputs=SYNTHETIC)
        assert getattr(task, "given_digest", None) is None
        begun, pieces = task.samples, task.next_pieces()
        assert sum(len(piece.inputs) for piece in pieces) == config.global_batch_size
        assert sum(piece.weight for piece in pieces) == pytest.approx(1)
        before = {key: values.clone() for key, values in task.model.named_parameters()}
        assert torch.isfinite(task.step())
        if name != "kfac":  # which normalises its weights
            assert all(torch.equal(before[key], now) for key, now in task.model.named_parameters())
    assert task.samples == begun + config.global_batch_size
    assert not list(tmp_path.iterdir())


def test_a_share_of_noise_that_is_no_multiple_of_its_pieces() -> None:
    def draw(settings: None, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.arange(count), torch.arange(count)

    task = SimpleNamespace(
        batch_per_rank=7, execution=None, device=SimpleNamespace(pin=lambda values: values),
        piece_rule=SimpleNamespace(draw_noise=draw),
    )  # fmt: skip
    pieces = draw_step(task, 3)
    assert [len(piece.inputs) for piece in pieces] == [3, 3, 1]
    assert [piece.weight for piece in pieces] == [3 / 7, 3 / 7, 1 / 7]
    assert pieces[0].inputs is pieces[1].inputs


def test_arms_are_found_in_the_facts_of_measurements() -> None:
    sides = {"baseline": {"label": "plain", "seconds": (1,)},
             "reference": {"label": "reference", "seconds": (2,)}}  # fmt: skip
    assert speed.list_arms({**sides, "overhead": 1.0}) == {"plain": (1,), "reference": (2,)}
    arms = {"flat": {"seconds": [3]}, "peak_bytes": {"flat": 5}}
    assert speed.list_arms(arms) == {"flat": [3]}


def test_a_profile_on_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Time, shares, memory, arithmetic, and which machine, command and code they are of."""
    out, figure = tmp_path / "gnmt.json", tmp_path / "gnmt.png"
    arguments = ["gnmt", "--input", "synthetic", "--rounds", "3", "--data", str(tmp_path / "data"),
                 "--set", "compile=off", "--set", "precision=fp32"]  # fmt: skip
    assert main(["speed", *arguments, "--output", str(out), "--figure", str(figure)]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "its arithmetic" in capsys.readouterr().out
    written = json.loads(out.read_text())
    found = written["profile"]
    assert len(found["seconds"]) == 3
    assert min(found["seconds"]) > 0
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["peak_bytes"] > 1e7
    rate = 16 * 25_684_128 / sorted(found["seconds"])[1]
    assert found["flops"]["tflops_per_second"] == pytest.approx(rate / 1e12)
    assert written["command"].startswith("cepheid measure speed gnmt --input synthetic")
    assert written["machine"]["processor"]
    assert len(written["code_digest"]) == 64
    assert {"commit", "load_before"} <= written.keys()
    assert not (tmp_path / "data").exists()


def test_the_step_of_one_size_of_a_network_that_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone is warmed up, and the mean over all sizes says nothing of its arithmetic."""
    tried: list[int] = []
    step = warm_up.step_on_noise

    def take_note(trainer: Any, settings: Any) -> str:
        tried.append(trainer.samples)
        return step(trainer, settings)

    monkeypatch.setattr("cepheid.reference.torch.trainer.step_on_noise", take_note)
    out = tmp_path / "video.json"
    arguments = ["speed", "video_prediction", "--profile", "--rounds", "3"]
    asked = [*arguments, "--at", "8", "--input", "synthetic", "--output", str(out)]
    assert main([*asked, "--set", "precision=fp32"]) == 0
    found = json.loads(out.read_text())["profile"]
    assert set(tried) == {8}
    assert found["samples_before"] == 8
    assert "flops" not in found
    with pytest.raises(UserError, match="--input synthetic"):
        main([*arguments, "--at", "8"])
    with pytest.raises(UserError, match="after 6,500 samples"):
        main([*arguments, "--at", "6500", "--input", "synthetic"])


def test_hosts_in_turn_feed_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers that sleep do not wait for a host that is faster; each share is a worker's own."""
    monkeypatch.setattr(hosts, "WORKERS", (1, 2))
    out, figure = tmp_path / "hosts.json", tmp_path / "hosts.png"
    call = ["speed", "gnmt", "--only", "hosts", "--input", "synthetic", "--rounds", "3",
            "--set", "compile=off", "--set", "precision=fp32", "--data", str(tmp_path)]  # fmt: skip
    assert main([*call, "--output", str(out), "--figure", str(figure)]) == 0
    assert "2 hosts in turn, 2 workers" in capsys.readouterr().out
    assert figure.read_bytes().startswith(b"\x89PNG")
    found = json.loads(out.read_text())["hosts"]
    for name in ("one host, 1 worker", "2 hosts in turn, 2 workers"):
        assert len(found[name]["seconds"]) == 3
        assert min(found[name]["seconds"]) >= found["step_seconds"]


def test_a_host_sends_all_sentences_of_a_batch_once() -> None:
    sent: list[list[Any]] = [[], []]
    ends: Any = [
        SimpleNamespace(send=lambda pair, into=into: into.append(pair[0])) for into in sent
    ]
    hosts._serve(hosts.Feeding(2, 1), 0, ends)
    assert [len(shares) for shares in sent] == [hosts.STEPS] * 2
    assert {len(share) for shares in sent for share in shares} == {hosts.SENTENCES}
    widths = [abs(a.shape[1] - b.shape[1]) for a, b in zip(*sent, strict=True)]
    assert sum(widths) / len(widths) < 3  # like lengths, so that no worker waits for another one


def test_operations_of_a_step_have_shares_that_add_up() -> None:
    model, inputs = torch.nn.Linear(64, 64), torch.ones(32, 64)
    task = SimpleNamespace(
        model=model, step=lambda: model(inputs).sum().backward(), synchronize=lambda: None
    )
    shares = profiles.profile_kernels(task).shares
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["aten::addmm"] > 0
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_each_time_of_an_accelerator_is_counted_once() -> None:
    """What torch found on an H200: operations, their kernels, and the step of an optimizer."""

    def event(key: str, on: str, microseconds: float, count: int, is_marked: bool = False) -> Any:
        return SimpleNamespace(
            key=key, device_type=getattr(DeviceType, on), is_user_annotation=is_marked, count=count,
            self_cpu_time_total=9.0, self_device_time_total=microseconds,
        )  # fmt: skip

    found = [
        event("aten::mm", "CPU", 60.0, 4),
        event("aten::view", "CPU", 0.0, 4),
        event("void gemm<float>", "CUDA", 60.0, 4),
        event("void replayed<float>", "CUDA", 40.0, 6),
        event("Optimizer.step#Adam.step", "CUDA", 30.0, 2, is_marked=True),
    ]
    kernels = profiles.count_operations(found, steps=2)
    assert kernels.shares == pytest.approx({"aten::mm": 0.6, "kernels of graphs": 0.4})
    assert (kernels.seconds, kernels.count, kernels.on) == (50e-6, 5, "device")


# Ranks that share images, sums and updates --------------------------------------------------------


def _measure_sharing(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "end_rank", lambda code: None)
        patch.setattr(sharing, "MOST_PIXELS", 64)
        patch.setattr(sharing, "STEPS", 2)
        main(
            ["speed", "resnet50", "--only", "partitions", "--only", "sums", "--only", "update",
             "--input", "synthetic", "--rounds", "3", "--set", "global_batch_size=2",
             "--data", str(path), "--output", str(path / "p.json")]
        )  # fmt: skip


@pytest.mark.promise  # networks of two ranks are timed in turns
def test_two_ranks_share_images_sums_and_updates(tmp_path: Path) -> None:
    on_ranks(2, _measure_sharing, tmp_path)
    facts = json.loads((tmp_path / "p.json").read_text())
    sums = facts["sums"]["2 x 1"]  # two rows of one rank: all bytes go to the other row
    assert sums["formula"][0] == 0
    assert sums["sent_bytes"][0][1] == pytest.approx(sums["formula"][1], rel=0.1)
    states = [arm["state_bytes"] for arm in facts["update"].values()]
    assert states[1:] == pytest.approx([states[0] / 2] * 2, rel=0.1)
    arms = facts["partitions"]
    assert {arm["pixels"] for arm in arms.values()} == {64}
    assert [arm["way"] for arm in arms.values()] == ["one rank", "shared batch", "images in 2"]
    assert all(len(arm["seconds"]) == len(arm["processor_seconds"]) == 3 for arm in arms.values())
    alone, batch, shared = (arm["kept_bytes"] for arm in arms.values())
    assert batch == pytest.approx(alone / 2, rel=0.15)
    assert alone / 2 < shared < 0.8 * alone  # a half, and rows of the neighbour


def test_one_rank_shares_no_images(tmp_path: Path) -> None:
    task = SimpleNamespace(world_size=1)
    with pytest.raises(UserError, match="an image is shared by several ranks; fix: start torchrun"):
        sharing.compare_partitions(SimpleNamespace(ranks=task))  # type: ignore[arg-type]
