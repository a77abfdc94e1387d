"""kfac in the laboratory: costs of an update, the ladder, updates and formats, other libraries."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cepheid.benchmarks.kfac import after_run
from cepheid.benchmarks.kfac.comparison import CHANNELS_FIRST, NETWORKS
from cepheid.measure.engine.byte_counts import measure_peak_bytes
from cepheid.measure.engine.turns import Subject, configure_open
from cepheid.measure.studies.costs.costs import describe_sent
from cepheid.measure.studies.costs.declared import load_costs
from cepheid.measure.studies.costs.inverses import share_inverses
from cepheid.measure.studies.costs.updates import Update, count_bytes
from cepheid.measure.studies.epochs import load_comparison
from cepheid.measure.studies.speed import kfac as speed
from cepheid.reference.run.config import configure
from cepheid.reference.run.execution import add_switches
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.second_order import curvature
from tests import tasks
from tests.benchmarks.test_kfac import FULL, MINI, build_task, weights_after
from tests.tasks import build

TWO = TorchRanks(0, 2, torch.device("cpu"))
LAYERS = [
    {"layer": "a", "milliseconds": 5.0, "cost": 50.0},
    {"layer": "b", "milliseconds": 3.0, "cost": 30.0},
    {"layer": "c", "milliseconds": 2.0, "cost": 20.0},
]


def test_the_costliest_layer_goes_to_the_rank_with_the_least_to_do() -> None:
    assert share_inverses(LAYERS, 1) == [10.0]
    assert share_inverses(LAYERS, 2) == [5.0, 5.0]
    assert share_inverses(LAYERS, 4) == [5.0, 3.0, 2.0, 0.0]


def test_stale_factors_travel_in_two_levels_as_published() -> None:
    assert "all_reduce=two_level" in load_costs("kfac", "full").steps[-1].overrides


def test_bytes_between_nodes_are_told_apart() -> None:
    sent = {("factors", "node"): 4, ("factors", "between nodes"): 2, ("rescaling", "all"): 1}
    kfac = SimpleNamespace(kfac=SimpleNamespace(bytes_sent=sent))
    by_what = count_bytes(SimpleNamespace(preconditioner=kfac))
    assert by_what == {"factors, node": 4, "factors, between nodes": 2, "rescaling": 1}
    counts = {"refreshes": 1, "possible_refreshes": 2}
    columns = describe_sent(Update("stale", 2.0, 1.0, (1.0, 3.0), (), by_what, counts, (1, 1)))
    assert columns == {"refreshed": "50.0%", "bytes of factors": "6", "between nodes": "2"}
    assert "between nodes" not in describe_sent(Update("", 1, 1, (1, 1), (), {}, counts, (1, 1)))


def test_each_rung_and_each_step_can_be_configured() -> None:
    for chosen in (MINI, FULL):
        costs = load_costs("kfac", chosen.scale)
        rungs, switched = costs.ladder.rungs, add_switches(chosen, costs.switches)
        configs = [configure_open(switched, overrides=rung.overrides) for rung in rungs]
        assert {config.hyperparameters["opt_preconditioner"] for config in configs} == {"none"}
        assert {rung.network for rung in rungs} - {""} <= set(NETWORKS)
        settings = zip(configs, rungs, strict=True)
        assert len({f"{config.execution} {rung.network}" for config, rung in settings}) == 5
    for chosen in (FULL, MINI):
        costs = load_costs("kfac", chosen.scale)
        for step in (costs.baseline, *costs.steps):
            compared = add_switches(chosen, costs.switches)
            configure(compared, division="open", overrides=step.overrides)


def test_channels_first_compute_the_same(data_root: Path) -> None:
    task = build_task(data_root, "opt_preconditioner=none")
    other = build(task.config, make=CHANNELS_FIRST)
    other.model.train()
    assert other.model.layer1[0].conv2.weight.is_contiguous()
    assert not task.model.layer1[0].conv2.weight.is_contiguous()
    assert float(other.step()) == pytest.approx(float(task.step()), rel=1e-5)


def test_steps_in_which_no_factor_is_due_run_compiled(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler cannot see hooks, so there are none while it runs; nothing else changes."""
    monkeypatch.setattr(curvature, "compute_steps_to_next", lambda *arguments: 2)
    eager = weights_after(build_task(data_root), 4)
    calls: list[bool] = []

    def is_observed() -> bool:
        return any(module._forward_hooks for module in task.model.modules())

    def fake(function: Any, dynamic: bool) -> Any:
        def call(*arguments: Any) -> Any:
            calls.append(is_observed())
            return function(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", fake)
    task = build_task(data_root, "compile=on")
    assert task.implementation()["training_step"] == "compiled where no factor is due"
    assert torch.equal(weights_after(task, 4), eager)
    assert calls == [False, False]
    monkeypatch.setattr(after_run, "PLAIN_TURNS", 1)
    for compute in (task.measure_afterwards, task.evaluate):
        while not is_observed():
            task.step()
        before = len(calls)
        compute()
        assert len(calls) > before
    assert not any(calls)


def test_compiling_needs_steps_in_which_no_factor_is_due(data_root: Path) -> None:
    with pytest.raises(UserError, match=r"--set compile=on: with kfac_stale=false .*; fix: "):
        build_task(data_root, "compile=on", "kfac_stale=false")
    plain = build_task(data_root, "compile=on", "kfac_stale=false", "opt_preconditioner=none")
    assert plain.implementation()["training_step"] == "compiled"


def make_subject(data_root: Path) -> Subject:
    """What the measurements of speed take: two rounds."""
    task = build_task(data_root)
    return tasks.make_subject(task.config, task)


def test_updates_are_timed_in_turns(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "UPDATES", 1)
    monkeypatch.setattr(speed, "SETTLE_UPDATES", 2)
    monkeypatch.setattr(speed, "find_spec", lambda name: None)
    rows = {row.what: row.result for row in speed.compare_updates(make_subject(data_root)).rows}
    assert rows["SGD"] == "1.00 times an update of SGD (1.00 to 1.00)"
    assert "K-FAC, stale" in rows
    assert "kfac-pytorch is not installed" in rows["kfac-pytorch, every step"]
    more, unit = rows["K-FAC, every step: memory beyond that of SGD"].split()
    assert (float(more) > 0, unit) == (True, "MiB")


def test_fisher_matrices_are_timed_in_turns(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two; the others differ in a setting, which test_kfac_settings trains with."""
    subject, first = make_subject(data_root), dict([*speed.FISHERS.items()][:2])
    assert all(speed._configure(subject, name, 1) for name in speed.FISHERS)
    monkeypatch.setattr(speed, "FISHERS", first)
    monkeypatch.setattr(speed, "FISHER_UPDATES", 1)
    rows = [row.what for row in speed.compare_fishers(subject).rows]
    assert rows == list(first)
    assert rows[0] == speed.SGD


@pytest.mark.slow  # two runs
def test_a_whole_run_is_timed_in_turns(data_root: Path) -> None:
    *each, both = speed.compare_whole_runs(make_subject(data_root)).rows
    assert [row.what for row in each] == ["K-FAC, stale, seed 1", "K-FAC, stale, seed 2"]
    assert "times an update of SGD (" in both.result


def test_formats_with_fewer_bits_change_the_update_more_with_k_fac_on_one_rank(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "FORMAT_SETTLE_UPDATES", 5)
    subject = make_subject(data_root)
    facts = speed.compare_formats(subject).facts["roundings"]
    assert len(facts) == 3 * len(speed.DAMPINGS)
    change = {(each["form"], each["damping"]): each["change"] for each in facts}
    for damping in speed.DAMPINGS:
        assert 0 < change["float21", damping] < change["bfloat16", damping]
    assert change["bfloat16", 1e-2] < change["bfloat16", 1e-6]
    with pytest.raises(UserError, match=r"opt_preconditioner=none: .*; fix: leave it out"):
        speed.compare_formats(dataclasses.replace(subject, overrides=["opt_preconditioner=none"]))
    with pytest.raises(UserError, match="on one rank, and there are 2; fix: start one process"):
        speed.compare_formats(dataclasses.replace(subject, ranks=TWO))


def test_peak_memory_is_that_of_tensors_that_live_at_once() -> None:
    def use() -> Tensor:
        first: Tensor = torch.zeros(2**20)
        second = first + 1  # two of 4 MiB
        del first
        total: Tensor = second.mul_(2).sum()
        return total

    assert 8 <= measure_peak_bytes(use) / 2**20 < 8.01


def test_both_optimizers_were_tuned_with_as_many_trials() -> None:
    ledger = json.loads((definition.BENCHMARKS / "kfac/tuning.json").read_text())
    by_optimizer = ledger["trials"]
    tuned = load_comparison("kfac", "mini", "optimizer").vary(MINI)
    assert len(by_optimizer["K-FAC"]) == len(by_optimizer["SGD"])
    assert ledger["target"] == {each.metric: each.target for each in tuned.quality}
    (target,) = tuned.quality
    for trial in [*by_optimizer["K-FAC"], *by_optimizer["SGD"]]:
        configure(tuned, division="open", overrides=trial["set"])
        epochs = enumerate(trial["accuracy"], 1)
        reached = (epoch for epoch, accuracy in epochs if target.holds(accuracy))
        assert trial["epochs_to_target"] == next(reached, None)
