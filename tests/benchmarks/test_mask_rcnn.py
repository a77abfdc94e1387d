"""mask_rcnn: the network, its schedule, what it finds and refuses; the contract has the rest."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra torch")

from torch import Tensor, nn

from benchmarks.mask_rcnn import broken
from benchmarks.mask_rcnn.detector import MaskRCNN
from benchmarks.mask_rcnn.task import Segmentation, create
from reference.data import coco
from reference.run.config import RunConfig, configure
from reference.torch.detection.pyramid import FrozenNorm
from reference.torch.detection.targets import Truth
from reference.torch.distributed import TorchRanks, start_ranks
from rules import definition
from rules.definition import Block
from rules.errors import UserError
from tests.distributed import on_ranks
from tests.prepared import prepare
from tests.reference.data.coco import replica

FULL, MINI = (definition.load("mask_rcnn", scale) for scale in ("full", "mini"))
ALONE = TorchRanks(0, 1, torch.device("cpu"))
TRAIN, EVALUATION = 48, 21


# Network -----------------------------------------------------------------------------------------


def test_the_full_network_is_the_published_one() -> None:
    facts = {**FULL.model, "num_image_candidates": 1000}
    with torch.device("meta"):
        network = MaskRCNN(facts, FrozenNorm, seed=1)
        maps = network.extract(torch.empty(1, 3, 1344, 1344))
    assert [each.shape[-1] for each in maps] == [336, 168, 84, 42, 21]

    def count(part: nn.Module, is_trained: bool | None = None) -> int:
        found = [p for p in part.parameters() if is_trained in (None, p.requires_grad)]
        return sum(parameter.numel() for parameter in found)

    counts = {name: count(part) for name, part in network.named_children()}
    assert counts == {
        "backbone": 23_454_912,
        "pyramid": 3_344_384,
        "proposals": 593_935,
        "box_head": 14_310_805,
        "mask_head": 2_643_537,
    }
    assert count(network) == 44_347_573
    assert count(network, is_trained=False) == 222_400
    frozen = [
        buffer for name, buffer in network.named_buffers() if name.endswith(("weight", "bias"))
    ]
    assert sum(buffer.numel() for buffer in frozen) == 53_120


def test_a_frozen_norm_is_a_batch_norm_in_evaluation() -> None:
    theirs, ours = nn.BatchNorm2d(3).eval(), FrozenNorm(3)
    for tensor in theirs.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 2)
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if "tracked" not in k})
    images = torch.randn(2, 3, 4, 4)
    assert torch.allclose(ours(images), theirs(images), atol=1e-6)
    assert not list(ours.parameters())


# Training on a few images ------------------------------------------------------------------------


def small_config(data_root: Path, *overrides: str, **facts: Any) -> RunConfig:
    sizes = {"train_samples": TRAIN, "evaluation_samples": EVALUATION}
    chosen = dataclasses.replace(
        MINI,
        data=MappingProxyType({**MINI.data, **sizes}),
        model=MappingProxyType({**MINI.model, **facts}),
    )
    prepare(chosen.data, data_root)
    settings = ["global_batch_size=8", "compile=off", "precision=fp32", *overrides]
    return configure(chosen, division="open", overrides=settings, data_root=data_root, seed=3)


def make_task(
    config: RunConfig, make: Callable[[RunConfig, TorchRanks], Segmentation] = create
) -> Segmentation:
    task = make(config, ALONE)
    task.build()
    task.open_data()
    return task


def train_task(config: RunConfig, ranks: TorchRanks = ALONE, samples: int = 24) -> Segmentation:
    task = create(config, ranks)
    task.build()
    task.open_data()
    task.train(Block(1, 0, samples), lambda samples: None)
    return task


# Several ranks -----------------------------------------------------------------------------------


def _train_in_parts(data_root: Path, overrides: list[str]) -> tuple[list[float], dict[str, float]]:
    torch.set_num_threads(1)
    with start_ranks() as ranks:
        task = create(small_config(data_root, *overrides), ranks)
        task.build()
        task.warm_up()
        task.open_data()
        task.evaluation_batch = 4
        losses = [
            task.train(Block(number, 8 * number - 8, 8 * number), lambda _: None)
            for number in (1, 2, 3)
        ]
        return losses, task.evaluate()


@pytest.mark.parametrize(
    ("world_size", "overrides"),
    [
        (2, ["pipeline_micro_batches=2"]),
        pytest.param(
            2,
            ["pipeline_micro_batches=4", "pipeline_schedule=gpipe"],
            marks=pytest.mark.slow,
        ),
        pytest.param(4, ["pipeline_micro_batches=2"], marks=pytest.mark.slow),
    ],
)
def test_ranks_that_share_the_graph_do_what_one_does(
    world_size: int, overrides: list[str], data_root: Path
) -> None:
    rate = "opt_base_learning_rate=0.002"  # so that rounding stays rounding
    small_config(data_root)  # data are prepared before the ranks start
    alone = _train_in_parts(data_root, [rate])
    several = on_ranks(
        world_size, _train_in_parts, data_root, [rate, "pipeline_stages=2", *overrides]
    )
    for losses, quality in several:
        assert losses == pytest.approx(alone[0], rel=1e-4)
        assert quality == pytest.approx(alone[1], rel=1e-3, abs=1e-4)
