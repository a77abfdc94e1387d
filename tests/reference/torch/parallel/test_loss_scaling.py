"""An overflow skips an update and leaves nothing behind, not even the first one of all."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.reference.torch.workload import Recipe
from tests.distributed import on_ranks
from tests.tasks import ALONE, build, configure_small

SCALED = ("chest_xray", "mask_rcnn", "resnet50", "ssd")  # their optimizers are fused without fp16


@contextmanager
def fill_memory() -> Iterator[None]:
    """Fill memory that nobody has initialised with NaN, so that its use shows in every run."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def build_small(name: str, data_root: Path, *settings: str, ranks: TorchRanks = ALONE) -> Any:
    """Return the task of a network of a quarter of the width, from random weights."""
    narrow: dict[str, Any] = {"width": 4} if name in ("chest_xray", "resnet50") else {}
    few = "global_batch_size=4"  # processors emulate float16
    settings = ("threads=1", few, *settings)
    return build(configure_small(name, data_root, *settings, **narrow, given_weights=None), ranks)


def make_scaled_task(name: str, data_root: Path, *settings: str, ranks: TorchRanks = ALONE) -> Any:
    """Return a task that is built and warmed up and has its data, in training mode."""
    task = build_small(name, data_root, "precision=fp16", *settings, ranks=ranks)
    task.predict_noise = lambda: None  # only steps are looked at
    task.warm_up()
    assert task.scaler.get_scale() == 65536, "warming up changes the scale"
    task.model.train()
    return task


def test_sgd_has_no_momentum_where_its_first_step_is_skipped(data_root: Path) -> None:
    task = make_scaled_task("resnet50", data_root)
    weight = torch.nn.Parameter(torch.ones(4096))
    options = {"lr": 0.1, "momentum": 0.9, "fused": True}
    recipe = Recipe(torch.optim.SGD, [{"params": [weight]}], options)
    optimizer = recipe.kind([{"params": [weight]}], **task.sharing.list_options(recipe))
    task.scaler.scale(torch.ones(()))
    with fill_memory():
        for gradient in (math.inf, 0.0):
            weight.grad = torch.full_like(weight, gradient)
            task.scaler.step(optimizer)
            task.scaler.update()
            assert torch.equal(weight, torch.ones(4096)), f"a gradient of {gradient}"


def train_past_an_overflow(task: Any) -> float:
    """Let the first gradients overflow, then train two steps; return the largest weight."""
    before = [weight.detach().clone() for weight in task.model.parameters()]
    task.scaler.scale(torch.ones(()))  # it makes its scale at its first use
    with fill_memory():
        task.scaler.update(1e30)
        task.step()
        task.state()  # waits for all weights
        assert all(map(torch.equal, before, task.model.parameters())), "an overflow changed weights"
        task.scaler.update(1.0)
        task.step()
        task.step()
        task.state()
    assert not all(map(torch.equal, before, task.model.parameters()))
    return max(float(weight.detach().abs().max()) for weight in task.model.parameters())


def _train_on_this_rank(name: str, data_root: Path) -> float:
    with start_ranks() as ranks:
        settings = ["weight_update=sharded"] * (ranks.world_size > 1)
        return train_past_an_overflow(make_scaled_task(name, data_root, *settings, ranks=ranks))


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("name", ["chest_xray", "resnet50"])  # Adam, SGD
def test_a_benchmark_trains_on_after_a_first_overflow(
    name: str, world_size: int, data_root: Path
) -> None:
    """Also on ranks that share the update."""
    configure_small(name, data_root)  # prepares the data
    first, *others = on_ranks(world_size, _train_on_this_rank, name, data_root)
    assert first < 100
    assert others == [first] * (world_size - 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_without_a_scaled_loss_optimizers_are_fused(precision: str, data_root: Path) -> None:
    for name in SCALED:
        task = build_small(name, data_root, f"precision={precision}")
        assert all(group["fused"] for group in task.optimizer.param_groups), name
