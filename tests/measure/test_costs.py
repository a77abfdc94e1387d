"""What an update costs: what is compared and projected, and the command on a few pictures."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cepheid.measure.engine.turns import Timing, divide
from cepheid.measure.studies import epochs
from cepheid.measure.studies.costs import costs as study
from cepheid.measure.studies.costs import declared, inverses, updates
from cepheid.measure.studies.costs.costs import draw_speedups
from cepheid.measure.studies.costs.declared import load_compared, load_costs
from cepheid.measure.studies.costs.updates import Setup
from cepheid.measure.studies.epochs import Run
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from cepheid.tools.measure.__main__ import main
from tests import tiny

Printed = pytest.CaptureFixture[str]


def test_ratios_are_those_of_table_1_and_of_medians_and_drawn_outside_quartiles() -> None:
    found = load_costs("kfac", "full")
    base = found.baseline.published_ms
    assert base
    ratios = [round(s.published_ms / base, 2) for s in found.steps if s.published_ms]
    assert ratios == [4.40, 3.49, 3.19, 3.88, 3.37, 1.89]
    assert "simulated" in found.note
    ours, theirs = Timing("K-FAC", (2.0, 3.0, 40.0)), Timing("SGD", (1.0, 2.0, 10.0))
    assert divide(ours, theirs) == (1.5, 1.75, 3.0)
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    speedups = [(1.0, 1.0, 1.0), (1.3, 1.1, 1.2), (0.7, 0.8, 0.9)]
    draw_speedups(axes, ["plain", "faster", "slower"], speedups)
    assert axes.dataLim.y1 >= 1.3


def test_each_scale_has_a_batch_of_its_own() -> None:
    """The published one at full scale: 32 images on each rank."""
    batches = {}
    for scale, ranks in (("full", 128), ("full", 4), ("mini", 4)):
        chosen = definition.load("kfac", scale)
        costs = load_costs("kfac", scale)
        setup = Setup(chosen, costs, (), Path(), rounds=3, settle=0).choose_batch(ranks)
        batches[scale, ranks] = setup.configure(*costs.baseline.overrides).global_batch_size
        asked = replace(setup, overrides=("global_batch_size=256",)).choose_batch(ranks)
        assert asked.configure().global_batch_size == 256
    assert batches == {("full", 128): 4096, ("full", 4): 128, ("mini", 4): 64}


@pytest.mark.parametrize("scale", ["full", "mini"])
def test_networks_are_compared_with_sgd_of_their_own(scale: str) -> None:
    chosen = definition.load("kfac", scale)
    networks = []
    for costs in load_compared("kfac", scale, "networks"):
        setup = Setup(chosen, costs, (), Path(), rounds=3, settle=0)
        inverses.refuse(setup.configure().hyperparameters)
        for step in (costs.baseline, *costs.steps):
            networks.append(setup.configure(*step.overrides).execution.own.get("network"))
            assert step.published_ms is None
            assert costs.name(step) == f"{costs.group}, {step.name}"
        arms = epochs.load_comparison("kfac", scale, costs.comparison).arms
        assert [arm.own_name for arm in arms if arm.group == costs.group] == ["SGD", "K-FAC"]
    four = ("resnet18", "resnet34", None, "resnet101")
    assert networks == [name for name in four for _ in range(3)]


def test_what_is_counted_belongs_to_the_timed_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn, in which nothing is timed yet, has most of the refreshes."""
    seconds: dict[str, Any] = {"SGD": count(1), "K-FAC": count(2)}

    def take_turn(task: Any, updates: int) -> float:
        task.refreshes += 3 if task.refreshes else 100
        return float(next(seconds[task.name]))

    def profile(task: Any, ranks: TorchRanks, number: int) -> Any:
        task.refreshes += 1000
        return {}, []

    def make(self: Setup, step: Any, ranks: TorchRanks) -> Any:
        name = "SGD" if step is costs.baseline else "K-FAC"
        return SimpleNamespace(name=name, refreshes=0), len(name)

    costs = load_costs("kfac", "mini")
    monkeypatch.setattr(Setup, "make_settled_task", make)
    monkeypatch.setattr(updates, "time_steps", take_turn)
    monkeypatch.setattr(updates, "profile_updates", profile)
    monkeypatch.setattr(updates, "fit_steps", lambda task, most: most)
    monkeypatch.setattr(updates, "count_refreshes", lambda task: {"refreshes": task.refreshes})
    setup = Setup(definition.load("kfac", "mini"), costs, (), Path(), rounds=3, settle=0)
    ranks = TorchRanks(0, 1, torch.device("cpu"))
    update = updates.measure_update(setup, costs.steps[0], ranks)
    assert update.counts == {"refreshes": 9}
    assert (update.milliseconds, update.ratio, update.memory) == (4000, 4 / 3, (3, 5))


# The command -----------------------------------------------------------------------------------


@pytest.fixture
def few_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A tiny definition; return the arguments of a command that makes few updates of it."""
    data = {"train_samples": 48, "evaluation_samples": 21}
    facts: dict[str, Any] = {"keep": [declared.FILE, epochs.COMPARISONS], "model": {"width": 4}}
    tiny.install(tmp_path / "benchmarks", monkeypatch, "kfac", data=data, **facts)
    monkeypatch.setattr(updates, "UPDATES", 1)
    command = ["costs", "kfac", "--rounds", "3", "--settle", "1", "--set", "global_batch_size=8"]
    return [*command, "--data", str(tmp_path / "data"), "--figures", str(tmp_path / "figures")]


@pytest.mark.promise  # seven kinds of updates are timed in turns
def test_all_of_it_on_a_few_pictures(
    few_pictures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    runs = [Run("SGD", 1, 12.0, {}), Run("SGD", 2, None, {}), Run("K-FAC", 1, 6.0, {})]
    monkeypatch.setattr(epochs, "load_runs", lambda *arguments: runs)
    line = [*few_pictures, "--set", "precision=fp32", "--output"]
    assert main([*line, str(tmp_path / "costs.json")]) == 0
    printed = capsys.readouterr().out
    for text in ("distributed inverse", "4.40", "simulated", "1 of 2 seeds"):
        assert text in printed
    assert "float21" not in printed  # nothing travels on one rank
    written = json.loads((tmp_path / "costs.json").read_text())
    names = [update["name"] for update in written["updates"]]
    assert names == ["distributed inverse", "stale Fisher"]
    assert written["updates"][0]["ratio"] > 0
    assert written["updates"][0]["phases_ms"][0]["inverse"] > 0
    for least, most in (update["memory"] for update in written["updates"]):
        assert 2**16 < least < most < 2**26
    plain, preconditioned = written["times_to_target"]
    assert (plain["epochs"], plain["reached"], plain["updates"]) == (12.0, 1, 72.0)
    assert preconditioned["minutes"] > 0
    capsys.readouterr()
    runs = [Run("ResNet-50, SGD", 1, 12.0, {}), Run("ResNet-50, K-FAC", 1, 6.0, {})]
    monkeypatch.setattr(study, "load_compared", lambda *names: load_compared(*names)[2:3])
    assert main([*line, str(tmp_path / "networks.json"), "--compare", "networks"]) == 0
    printed = capsys.readouterr().out
    assert "ResNet-50, stale Fisher" in printed
    assert "Reported" not in printed
    of_group = json.loads((tmp_path / "networks.json").read_text())["compared"]["ResNet-50"]
    assert [row["epochs"] for row in of_group["times_to_target"]] == [12.0, 6.0]
    for balance in written["balance"]:
        assert len(balance["milliseconds"]) == balance["ranks"]
    for name in ("phases.png", "balance.png"):
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG")


def test_each_rank_has_its_phases_and_waits_for_the_busiest(tmp_path: Path) -> None:
    """Figure 5, of ResNet-34."""
    groups = load_compared("kfac", "mini", "networks")
    setup: Any = SimpleNamespace(costs=next(each for each in groups if each.group == "ResNet-34"))
    phases = [{"inverse": 30.0, "communication": 1.0}, {"inverse": 1.0, "communication": 30.0}]
    update = SimpleNamespace(name="distributed inverse", phases_ms=phases)
    measured: Any = SimpleNamespace(updates=[update])
    path = study.draw_ranks(tmp_path, setup, measured)
    assert path.name == "ranks-resnet-34.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    layers = [{"cost": cost, "milliseconds": float(cost)} for cost in (9, 4, 3)]
    balance = [{"ranks": n, "milliseconds": inverses.share_inverses(layers, n)} for n in (2, 128)]
    assert balance[0]["milliseconds"] == [9.0, 7.0]
    assert inverses.draw(tmp_path, {"balance": balance}).read_bytes().startswith(b"\x89PNG")


@pytest.mark.promise  # three kinds of updates are timed in turns
def test_the_ladder_leaves_out_what_does_not_run_here(
    few_pictures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:

    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", fail)
    assert main([*few_pictures, "--ladder", "--output", str(tmp_path / "ladder.json")]) == 0
    printed = capsys.readouterr().out
    for text in ("channels last", "left out: bfloat16, compiled: compile=on, but", "MiB"):
        assert text in printed
    written = json.loads((tmp_path / "ladder.json").read_text())
    names = [rung["name"] for rung in written["rungs"]]
    assert names == ["float32, channels first", "channels last", "bfloat16"]
    assert "needs an accelerator" in written["left_out"]["float16"]
    assert written["rungs"][0]["speedup"] == [1, 1, 1]
    assert len(written["rungs"][1]["timing"]["seconds"]) == 3
    assert (tmp_path / "figures" / "ladder.png").read_bytes().startswith(b"\x89PNG")
