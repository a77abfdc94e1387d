"""What only an accelerator can show. On a processor the same code runs, where it can.

`make test-gpu` runs these tests; `make first-gpu` says in ten minutes what holds (``__main__``).
They take what `cepheid run` would take: torch's accelerator, or a vendor's own device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # type: ignore[attr-defined]

from cepheid.reference.machine.accelerators import DEVICE
from cepheid.reference.run.config import configure
from cepheid.reference.torch.device import Device
from cepheid.reference.torch.devices.kinds import find_device, register
from cepheid.reference.torch.ranks.choice import list_accelerators
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.tasks import create, take_samples

TRAINING = [name for name in definition.names() if definition.load(name, "mini").kind == "train"]
SAMPLES = 8
Place = torch.device


def find() -> tuple[list[Device], str]:
    """Return the accelerators that this process may use, and why there are none."""
    with patch.dict("os.environ", {DEVICE: ""}):  # tests run on processors otherwise
        try:
            found = list(list_accelerators())
        except UserError as error:
            return [], str(error)
    return found, "" if found else f"torch {torch.__version__} finds no accelerator here"


ACCELERATORS, WHY_NONE = find()
PLACE = ACCELERATORS[0].place if ACCELERATORS else torch.device("meta")
if ACCELERATORS:
    register(ACCELERATORS[0])
on_accelerator = [
    pytest.mark.accelerator,
    pytest.mark.skipif(not ACCELERATORS, reason=WHY_NONE or "there is one"),
]
needs_two = pytest.mark.skipif(len(ACCELERATORS) < 2, reason="fewer than two accelerators here")
PLACES = [
    pytest.param(torch.device("cpu"), id="cpu"),
    pytest.param(PLACE, id="accelerator", marks=on_accelerator),
]


def build(name: str, place: torch.device, *overrides: str) -> Any:
    """Return the task of a benchmark at mini scale, in float32 and eager unless overridden."""
    settings = ("compile=off", "precision=fp32", *overrides)
    config = configure(
        definition.load(name, "mini"), seed=3, data_root=Path("none"), overrides=settings
    )
    task = create(config, TorchRanks(0, 1, place))
    task.build()
    take_samples(task, SAMPLES)
    return task


def train(task: Any, steps: int) -> list[Tensor]:
    """Train on noise; return the weights, on the CPU."""
    task.model.train()
    for _ in range(steps):
        task.step_on_noise(task.execution)
        task.apply_gradients()
    return [parameter.detach().cpu() for parameter in task.model.parameters()]


@contextmanager
def make_group_of_one(place: torch.device) -> Iterator[Any]:
    """Yield the process group of this process alone, with the backend of several."""
    backend = find_device(place).backend
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
