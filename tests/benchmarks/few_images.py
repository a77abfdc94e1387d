"""Training on a few images, for the tests of benchmarks that train on images."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch

from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules.definition import Block, Definition
from tests.prepared import prepare

ALONE = TorchRanks(0, 1, torch.device("cpu"))
TRAIN, EVALUATION = 48, 21

Task = TypeVar("Task")


def configure_few(
    definition: Definition, data_root: Path, *overrides: str, **facts: Any
) -> RunConfig:
    """Return the configuration of a run on few images; ``facts`` are those of its model."""
    sizes = {"train_samples": TRAIN, "evaluation_samples": EVALUATION}
    chosen = dataclasses.replace(
        definition,
        data=MappingProxyType({**definition.data, **sizes}),
        model=MappingProxyType({**definition.model, **facts}),
    )
    prepare(chosen.data, data_root)
    settings = ["global_batch_size=8", "compile=off", "precision=fp32", *overrides]
    return configure(chosen, division="open", overrides=settings, data_root=data_root, seed=3)


def make_task(
    create: Callable[[RunConfig, TorchRanks], Task], config: RunConfig, ranks: TorchRanks = ALONE
) -> Task:
    """Return a task that is built and has its data."""
    task: Any = create(config, ranks)
    task.build()
    task.open_data()
    return task  # type: ignore[no-any-return]


def train_task(
    create: Callable[[RunConfig, TorchRanks], Task],
    config: RunConfig,
    ranks: TorchRanks = ALONE,
    samples: int = 24,
) -> Task:
    """Return a task that has trained on some samples."""
    task: Any = make_task(create, config, ranks)
    task.train(Block(1, 0, samples), lambda samples: None)
    return task  # type: ignore[no-any-return]


def train_in_parts(
    create: Callable[[RunConfig, TorchRanks], Any], config: RunConfig
) -> tuple[list[float], dict[str, float]]:
    """Return the losses of three steps and the quality after them, on all ranks there are."""
    torch.set_num_threads(1)
    with start_ranks() as ranks:
        task = create(config, ranks)
        task.build()
        task.warm_up()
        task.open_data()
        task.evaluation_batch = 4
        losses = [
            task.train(Block(number, 8 * number - 8, 8 * number), lambda _: None)
            for number in (1, 2, 3)
        ]
        return losses, task.evaluate()
