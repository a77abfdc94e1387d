"""A rehearsal for accelerators without one: every task runs at every scale on the ``meta`` device.

It has shapes and no values, so two faults end it that cost nothing on a CPU: a tensor that is
created on another device than its task's, and a host that waits for a value inside a step.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the reference implementations need the extra torch")

from torch import Tensor
from torch.overrides import TorchFunctionMode

from cepheid.benchmarks.galaxy_shape.model import sum_metrics
from cepheid.benchmarks.kfac.model import normalize_weights
from cepheid.benchmarks.kfac.pictures import erase_rectangles
from cepheid.reference.run.config import configure
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules import definition
from tests.tasks import create, take_samples

# Loops over layers, and over thousands of proposals; the mini scale has the same code.
LONG = {("gnmt", "full"), ("mask_rcnn", "full")}
TRAINING = [
    pytest.param(
        name, scale, id=f"{name}-{scale}", marks=[pytest.mark.promise] * ((name, scale) in LONG)
    )
    for name in definition.names()
    for scale in definition.scales(name)
    if definition.load(name, scale).kind == "train"
]
# What the host decides by values, so that it has to wait for the device.
HOST_DECIDES = {
    ("kfac", "update"): "which factors are stale, and whether a damped inverse exists",
    ("gnmt", "prediction"): "beam search ends when all hypotheses have ended",
    ("transformer", "prediction"): "beam search ends when all hypotheses have ended",
}
SAMPLES = 8  # of a step: noise is drawn on the CPU before it is moved
WAITS = r"meta tensor"  # of torch's message when a value is asked for


class _WithoutGenerators(TorchFunctionMode):
    """Draw without a generator on ``meta``, which has none and draws nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        is_meta = str(kwargs.get("device")) == "meta" or any(one.is_meta for one in tensors)
        if is_meta and kwargs.get("generator") is not None:
            del kwargs["generator"]
        return func(*args, **kwargs)


class _AnyGenerator(torch.Generator):  # type: ignore[misc, name-defined]
    """A generator that may be asked for on ``meta``."""

    def __new__(cls, device: object = None) -> "_AnyGenerator":
        made: _AnyGenerator = super().__new__(cls, "cpu")
        return made


class _RefuseBlockingCopies(TorchFunctionMode):
    """Raise an error where the host would wait until values that it has lie on ``meta``."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        is_on_host = not any(isinstance(one, Tensor) and one.is_meta for one in args)
        if func in _COPIES and is_on_host and made.is_meta:
            is_short = func is not torch.tensor and kwargs.get("non_blocking", False)
            assert is_short, f"a blocking copy of {args[0]}"
        return made


_COPIES = (torch.tensor, torch.as_tensor, Tensor.to)


@pytest.fixture(autouse=True)
def on_meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let tasks draw random numbers on ``meta``."""
    monkeypatch.setattr(torch, "Generator", _AnyGenerator)
    with _WithoutGenerators():
        yield


def build(name: str, scale: str) -> Any:
    """The task of a benchmark, built on ``meta``. Fused optimizers need values, so it has none."""
    config = configure(
        definition.load(name, scale),
        seed=3,
        data_root=Path("none"),
        overrides=("compile=off", "precision=fp32", "threads=1"),
    )
    task = create(config, TorchRanks(0, 1, torch.device("meta")))
    task.build()
    take_samples(task, SAMPLES)
    for group in getattr(task.optimizer, "param_groups", ()):
        group["fused"] = False
    return task


def rehearse(task: Any) -> Iterator[str]:
    """Yield the name of each part of a run before it runs."""
    yield "forward and backward"
    task.model.train()
    task.step_on_noise(task.execution)
    yield "update"
    task.apply_gradients()
    yield "prediction"
    task.model.eval()
    with torch.no_grad():
        task.predict_noise()


@pytest.mark.parametrize(("name", "scale"), TRAINING)
def test_every_part_runs_without_values(name: str, scale: str) -> None:
    task = build(name, scale)
    elsewhere = {key for key, value in task.model.state_dict().items() if not value.is_meta}
    assert not elsewhere, f"{name}: not on the device of the task: {sorted(elsewhere)}"
    parts = rehearse(task)
    part = next(parts)
    while part:
        if (name, part) not in HOST_DECIDES:
            part = next(parts, "")
            continue
        with pytest.raises((RuntimeError, NotImplementedError), match=WAITS):
            next(parts, "")
        return  # what follows was rehearsed by the other benchmarks


@pytest.mark.parametrize("name", dict.fromkeys(each.values[0] for each in TRAINING))
def test_no_step_copies_from_the_host(name: str) -> None:
    """What is copied in the first step may stay on the device."""
    task = build(name, "mini")
    noise = task.draw_noise(SAMPLES)
    task.draw_noise = lambda count: noise  # it comes from the host, as no batch of a run does
    task.model.train()
    task.step_on_noise(task.execution)
    with _RefuseBlockingCopies():
        task.step_on_noise(task.execution)


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(
            lambda make: erase_rectangles(
                make(4, 8, 8, 3).byte(), 1.0, np.random.default_rng(1), 0, 4
            ),
            id="erased rectangles",
        ),
        pytest.param(
            lambda make: normalize_weights(torch.nn.Linear(3, 2, device="meta")),
            id="norms of weights",
        ),
        pytest.param(
            lambda make: sum_metrics(make(4, 2), make(4, 2, 2), make(4, 2)),
            id="metrics of shapes",
        ),
    ],
)
def test_work_beside_a_network_copies_nothing_from_the_host(work: Any) -> None:
    def make(*shape: int) -> Any:
        return torch.ones(shape, device="meta")

    work(make)
    with _RefuseBlockingCopies():
        work(make)


@pytest.mark.parametrize("fault", ["wait", "place", "copy"])
def test_faults_are_found(fault: str) -> None:
    task = build("galaxy_shape", "mini")

    def faulty(*batch: Tensor) -> Tensor:
        loss: Tensor = task.compute_loss(*batch)
        if fault == "wait":
            loss = loss * float(loss.detach() > 0)
        elif fault == "place":
            loss = loss + torch.ones(2).mul(loss).sum()
        else:
            loss = loss + torch.tensor([1.0], device=loss.device)
        return loss

    task.compiled_loss = faulty
    wrong = (RuntimeError, NotImplementedError, AssertionError)
    with pytest.raises(wrong, match=r"meta|blocking copy"), _RefuseBlockingCopies():
        task.step_on_noise(task.execution)
