"""What an update costs: what is compared, and what is projected."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="measuring needs the extra torch")

from cepheid.measure.engine import turns
from cepheid.measure.engine.turns import Timing, divide
from cepheid.measure.studies import epochs
from cepheid.measure.studies.costs import costs as measure_costs
from cepheid.measure.studies.costs.cost_steps import load_compared, load_costs
from cepheid.measure.studies.costs.costs import OptimizerParts, Setup, load_parts, project_ms
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from cepheid.rules.errors import UserError

SAMPLES = ("forward", "backward")
PHASES = {"forward": 8.0, "backward": 24.0, "communication": 6.0, "inverse": 10.0}


def test_samples_are_divided_and_an_optimizer_stretches_its_own_phases() -> None:
    alone = {name: value for name, value in PHASES.items() if name != "communication"}
    assert project_ms(alone, 1, 1, SAMPLES, {}) == 42
    assert project_ms(alone, 1, 4, SAMPLES, {"inverse": 0.3}) == pytest.approx(32 / 4 + 3)
    longer = {**alone, "update": 2.0}
    assert project_ms(longer, 1, 4, SAMPLES, {"inverse": 0.3}) == pytest.approx(13)


def test_parts_that_were_shared_out_when_measured() -> None:
    # The first of two ranks took 6 of 10 ms of inverses; the busiest of four takes 4.
    assert project_ms({"inverse": 6.0}, 2, 4, SAMPLES, {"inverse": 4 / 6}) == pytest.approx(4.0)


def test_communication_grows_as_that_of_a_ring() -> None:
    assert project_ms({"communication": 6.0}, 2, 4, SAMPLES, {}) == pytest.approx(9.0)
    assert project_ms({"communication": 6.0}, 2, 10**9, SAMPLES, {}) == pytest.approx(12.0)


def test_published_ratios_are_those_of_table_1() -> None:
    found = load_costs("kfac", "full")
    base = found.baseline.published_ms
    assert base
    ratios = [round(s.published_ms / base, 2) for s in found.steps if s.published_ms]
    assert ratios == [4.40, 3.49, 3.19, 3.88, 3.37, 1.89]
    assert "simulated" in found.note


def test_each_scale_has_a_batch_of_its_own() -> None:
    """The published one at full scale: 32 images on each rank."""
    batches = {}
    for scale, ranks in (("full", 128), ("full", 4), ("mini", 4)):
        chosen = definition.load("kfac", scale)
        costs, parts = load_costs("kfac", scale), load_parts("kfac")
        setup = Setup(chosen, costs, parts, (), Path(), rounds=3, settle=0).choose_batch(ranks)
        batches[scale, ranks] = setup.configure(*costs.baseline.overrides).global_batch_size
        asked = replace(setup, overrides=("global_batch_size=256",)).choose_batch(ranks)
        assert asked.configure().global_batch_size == 256
    assert batches == {("full", 128): 4096, ("full", 4): 128, ("mini", 4): 64}


@pytest.mark.parametrize("scale", ["full", "mini"])
def test_networks_are_compared_with_sgd_of_their_own(scale: str) -> None:
    chosen, parts = definition.load("kfac", scale), load_parts("kfac")
    networks = []
    for costs in load_compared("kfac", scale, "networks"):
        setup = Setup(chosen, costs, parts, (), Path(), rounds=3, settle=0)
        setup.refuse()
        for step in (costs.baseline, *costs.steps):
            networks.append(setup.configure(*step.overrides).execution.own.get("network"))
            assert step.published_ms is None
            assert costs.name(step) == f"{costs.group}, {step.name}"
        arms = epochs.load_comparison("kfac", scale, costs.comparison).arms
        assert [arm.own_name for arm in arms if arm.group == costs.group] == ["SGD", "K-FAC"]
    assert networks == [
        name for name in ("resnet18", "resnet34", None, "resnet101") for _ in range(3)
    ]


def test_a_ratio_is_that_of_medians_with_the_quartiles_of_the_turns() -> None:
    ours, theirs = Timing("K-FAC", (2.0, 3.0, 40.0)), Timing("SGD", (1.0, 2.0, 10.0))
    assert divide(ours, theirs) == (1.5, 1.75, 3.0)


def test_what_is_counted_belongs_to_the_timed_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn, in which nothing is timed yet, has most of the refreshes."""
    seconds: dict[str, Any] = {"SGD": count(1), "K-FAC": count(2)}

    class Parts(OptimizerParts):
        def count(self, task: Any) -> Mapping[str, float]:
            return {"refreshes": task.refreshes}

    def take_turn(task: Any, updates: int) -> float:
        task.refreshes += 3 if task.refreshes else 100
        return float(next(seconds[task.name]))

    def profile(parts: OptimizerParts, task: Any, ranks: TorchRanks) -> Any:
        task.refreshes += 1000
        return {}, []

    def make(self: Setup, step: Any, ranks: TorchRanks) -> Any:
        return SimpleNamespace(name="SGD" if step is costs.baseline else "K-FAC", refreshes=0)

    costs = load_costs("kfac", "mini")
    monkeypatch.setattr(Setup, "make_settled_task", make)
    monkeypatch.setattr(turns, "time_steps", take_turn)
    monkeypatch.setattr(measure_costs, "_profile_updates", profile)
    setup = Setup(definition.load("kfac", "mini"), costs, Parts(), (), Path(), rounds=3, settle=0)
    ranks = TorchRanks(0, 1, torch.device("cpu"))
    update = measure_costs._measure_update(setup, costs.steps[0], ranks)
    assert update.counts == {"refreshes": 9}
    assert (update.milliseconds, update.ratio) == (4000, 4 / 3)


def test_what_is_not_compared() -> None:
    with pytest.raises(UserError, match='did you mean "networks"'):
        load_compared("kfac", "mini", "network")


def test_a_benchmark_without_steps() -> None:
    with pytest.raises(UserError, match="benchmarks that do: kfac"):
        load_costs("resnet50", "mini")
