"""kfac: which rank computes which inverse, the ladder of the baseline, compilation."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from cepheid.benchmarks.kfac import after_run
from cepheid.benchmarks.kfac.comparison import CHANNELS_FIRST
from cepheid.measure.studies.costs.declared import load_costs
from cepheid.measure.studies.costs.kfac import KfacParts, share_inverses
from cepheid.measure.studies.costs.updates import OptimizerParts, Update
from cepheid.reference.run.config import configure
from cepheid.rules.errors import UserError
from cepheid.second_order import curvature
from tests.benchmarks.test_kfac import FULL, MINI, build_task, weights_after
from tests.tasks import build

PARTS = KfacParts()
LAYERS = [
    {"layer": "a", "milliseconds": 5.0, "cost": 50.0},
    {"layer": "b", "milliseconds": 3.0, "cost": 30.0},
    {"layer": "c", "milliseconds": 2.0, "cost": 20.0},
]


def test_the_costliest_layer_goes_to_the_rank_with_the_least_to_do() -> None:
    assert share_inverses(LAYERS, 1) == [10.0]
    assert share_inverses(LAYERS, 2) == [5.0, 5.0]
    assert share_inverses(LAYERS, 4) == [5.0, 3.0, 2.0, 0.0]


def test_inverses_take_as_long_as_those_of_the_busiest_rank() -> None:
    facts = {"inverses_ms": LAYERS}
    assert PARTS.stretch(facts, measured_ranks=1, ranks=4) == {"inverse": 0.5}
    assert PARTS.stretch(facts, measured_ranks=2, ranks=128) == {"inverse": 1.0}


def test_an_optimizer_without_parts_of_its_own_adds_nothing() -> None:
    parts = OptimizerParts()
    parts.refuse({})
    assert parts.stretch(parts.measure(None), 1, 4) == {}
    assert not parts.list_tables({})


def test_the_products_of_an_update_are_counted(data_root: Path) -> None:
    task = build_task(data_root)
    facts = PARTS.measure(task)
    by_hand = 0
    for outputs, inputs in (row["sizes"][::-1] for row in facts["inverses_ms"] if row["sizes"]):
        by_hand += 2 * outputs**2 * inputs + 2 * outputs * inputs**2
    network = count_by_hand(task.model)
    assert facts["operations"] == {"products": by_hand, "network": network, "images": 8}
    _, operations = PARTS.list_tables(facts)
    (row,) = operations.rows
    assert list(row) == ["GFLOP of the products", "of the network, 8 images", "share"]
    assert all(parameter.grad is None for parameter in task.model.parameters())


def count_by_hand(model: Any) -> int:
    """Operations of forward and backward passes over 8 images; the images need no gradients."""
    counts: list[int] = []

    def count(module: Any, inputs: Any, output: Any) -> None:
        counts.append(2 * output.numel() * module.weight[0].numel())

    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            module.register_forward_hook(count)
    pixels = MINI.model["pixels"]
    model(torch.zeros(8, 3, pixels, pixels))
    return 3 * sum(counts) - counts[0]


def test_the_operations_are_those_of_the_network_that_was_chosen(data_root: Path) -> None:
    counts = [
        PARTS.measure(build_task(data_root, *chosen))["operations"]["network"]
        for chosen in ((), ("network=resnet101",))
    ]
    assert 0 < counts[0] < counts[1]


def test_bytes_between_nodes_are_told_apart() -> None:
    sent = {("factors", "node"): 4, ("factors", "between nodes"): 2, ("rescaling", "all"): 1}
    by_what = PARTS.count_bytes(SimpleNamespace(kfac=SimpleNamespace(bytes_sent=sent)))
    assert by_what == {"factors, node": 4, "factors, between nodes": 2, "rescaling": 1}
    counts = {"refreshes": 1, "possible_refreshes": 2}
    columns = PARTS.describe(Update("stale", 2.0, 1.0, (1.0, 3.0), (), by_what, counts))
    assert columns == {"refreshed": "50.0%", "bytes of factors": "6", "between nodes": "2"}
    assert "between nodes" not in PARTS.describe(Update("", 1, 1, (1, 1), (), {}, counts))


def test_stale_factors_travel_in_two_levels_as_published() -> None:
    assert "all_reduce=two_level" in load_costs("kfac", "full").steps[-1].overrides


def test_each_rung_of_the_ladder_can_be_configured() -> None:
    for chosen in (MINI, FULL):
        rungs = load_costs("kfac", chosen.scale).require_ladder().rungs
        configs = [configure(chosen, division="open", overrides=rung.overrides) for rung in rungs]
        assert {config.hyperparameters["opt_preconditioner"] for config in configs} == {"none"}
        assert {rung.network for rung in rungs} - {""} <= set(PARTS.networks)
        settings = zip(configs, rungs, strict=True)
        assert len({f"{config.execution} {rung.network}" for config, rung in settings}) == 4


def test_a_benchmark_without_a_ladder() -> None:
    with pytest.raises(UserError, match="transformer names no steps of its baseline"):
        load_costs("transformer", "mini").require_ladder()


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
