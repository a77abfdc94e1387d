"""What only a GPU can show; `make test-gpu` runs it. On a CPU the same code runs where it can."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the reference implementations need the extra torch")

from torch import Tensor

from cepheid.reference.run.config import configure
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules import definition
from tests.distributed import on_ranks
from tests.tasks import create, take_samples

GPUS = torch.cuda.device_count()
needs_gpu = pytest.mark.skipif(GPUS < 1, reason="no CUDA GPU here")
needs_two = pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA GPUs here")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, needs_gpu])]
TRAINING = [name for name in definition.names() if definition.load(name, "mini").kind == "train"]
# Others draw noise from the generator of the device.
DETERMINISTIC = [name for name in TRAINING if name not in ("galaxy_bnn", "galaxy_vae")]
HOST_DECIDES = {"kfac"}  # in its update: which factors are stale (tests/test_rehearsal.py)
SAMPLES = 8


def build(name: str, device: str, *overrides: str) -> Any:
    """The task of a benchmark at mini scale, in float32 and eager unless overridden."""
    settings = ("compile=off", "precision=fp32", *overrides)
    config = configure(
        definition.load(name, "mini"), seed=3, data_root=Path("none"), overrides=settings
    )
    task = create(config, TorchRanks(0, 1, torch.device(device)))
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
def refuse_waiting(device: str) -> Iterator[None]:
    """Raise an error where the host waits for the GPU; on a CPU there is nothing to wait for."""
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TRAINING)
def test_no_step_waits_for_the_device(name: str, device: str) -> None:
    """What the first step allocates may wait; the second must not."""
    task = build(name, device)
    train(task, 1)
    noise = task.draw_noise(SAMPLES)
    task.draw_noise = lambda count: noise  # it comes from the host, as no batch of a run does
    with refuse_waiting(device):
        task.step_on_noise(task.execution)
        if name not in HOST_DECIDES:
            task.apply_gradients()


@contextmanager
def multiply_exactly() -> Iterator[None]:
    """Let convolutions and LSTMs multiply in float32 in the context, not in TF32."""
    kernels = torch.backends.cudnn.conv, torch.backends.cudnn.rnn
    before = [each.fp32_precision for each in kernels]
    for each in kernels:
        each.fp32_precision = "ieee"
    try:
        yield
    finally:
        for each, precision in zip(kernels, before, strict=True):
            each.fp32_precision = precision


def test_tests_leave_no_precision_behind() -> None:
    """Where convolutions and LSTMs differ, torch raises an error for ``allow_tf32``."""
    before = torch.backends.cudnn.allow_tf32
    with multiply_exactly():
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert torch.backends.cudnn.allow_tf32 == before


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_one_step_is_that_of_a_cpu(name: str) -> None:
    with multiply_exactly():
        on_cpu, on_gpu = (train(build(name, device), 1) for device in ("cpu", "cuda"))
    for one, other in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
@needs_gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])  # the second captures CUDA graphs
def test_compiled_and_captured_losses_are_eager_ones(mode: str) -> None:
    task = build("galaxy_shape", "cuda")
    batch = task.draw_noise(SAMPLES)
    expected = task.compute_loss(*batch).detach()
    compiled = torch.compile(task.compute_loss, mode=mode)
    for _ in range(3):  # warm-up, capture, replay
        torch.testing.assert_close(compiled(*batch).detach(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_a_copy_from_pinned_memory_has_its_values(device: str) -> None:
    task = build("galaxy_shape", device)
    values = torch.arange(1000.0)
    pinned = values.pin_memory() if device == "cuda" else values
    moved = task.to_device(pinned)
    assert moved.device.type == device
    task.synchronize()
    assert torch.equal(moved.cpu(), values)


@pytest.mark.parametrize("device", DEVICES)
def test_an_overflow_skips_the_update_and_lowers_the_scale(device: str) -> None:
    task = build("resnet50", device, "precision=fp16")
    before = [parameter.detach().clone() for parameter in task.model.parameters()]
    scale = task.scaler.get_scale()
    task.model.train()
    loss = task.compute_loss(*task.draw_noise(SAMPLES))
    task.scaler.scale(loss).backward()
    next(task.model.parameters()).grad.fill_(float("inf"))
    task.apply_gradients()
    assert all(map(torch.equal, before, task.model.parameters()))
    assert task.scaler.get_scale() == scale / 2


def _gather_uneven() -> list[float]:
    """Each rank has another number of values; all get the sum of all."""
    with start_ranks() as ranks:
        mine = torch.zeros(6, device=ranks.device)
        mine[ranks.rank : 2 * ranks.rank + 1] = 1.0 + ranks.rank
        total: list[float] = ranks.sum(mine).tolist()
    return total


@pytest.mark.parametrize(
    ("device", "world_size"),
    [("cpu", 2), pytest.param("cuda", GPUS, marks=[pytest.mark.cuda, needs_two])],
)
def test_shares_of_unequal_size_are_summed(
    device: str, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By gloo on processors, by NCCL on all GPUs."""
    monkeypatch.setenv("CEPHEID_DEVICE", device)
    totals = on_ranks(world_size, _gather_uneven)
    expected = [0.0] * 6
    for rank in range(world_size):
        for place in range(rank, min(6, 2 * rank + 1)):
            expected[place] += 1.0 + rank
    assert totals == [expected] * world_size
