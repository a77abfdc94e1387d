"""The tasks of benchmarks in tests: configured small, built, trained, and looked into.

A test uses what every task has: build, warm_up, open_data, step, train, evaluate, model,
optimizer, state, restore, samples. Whatever must know more of how a task computes stands here.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.turns import Subject
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.task import GenerationTask
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.torch.parallel import sharing
from cepheid.reference.torch.ranks.distributed import TorchRanks, start_ranks
from cepheid.rules import definition
from cepheid.rules.definition import Block, Definition
from tests.distributed import on_ranks
from tests.prepared import prepare

ALONE = TorchRanks(0, 1, torch.device("cpu"))
TRAIN, EVALUATION, BATCH = 48, 21, 8  # samples
Result = TypeVar("Result")
Make = Any  # a workload, or what makes a task of a configuration and ranks


class Trained(NamedTuple):
    """The outcome of a short training: losses of its steps, quality, and some of the weights."""

    losses: list[float]
    quality: dict[str, float]
    weights: list[float]


def shrink(
    chosen: Definition, train: int = TRAIN, evaluation: int = EVALUATION, **model: Any
) -> Definition:
    """Return the definition with a few samples; ``model`` replaces facts of its model.

    Weights that have a distribution are drawn twice in an evaluation: each draw takes as long.
    """
    sizes = {"train_samples": train, "evaluation_samples": evaluation}
    if "weight_draws" in chosen.model:
        model = {"weight_draws": 2, **model}
    return dataclasses.replace(
        chosen,
        data=MappingProxyType({**chosen.data, **sizes}),
        model=MappingProxyType({**chosen.model, **model}),
    )


def configure_small(
    chosen: str | Definition,
    data_root: Path,
    *overrides: str,
    division: str = "open",
    samples: tuple[int, int] = (TRAIN, EVALUATION),
    **model: Any,
) -> RunConfig:
    """Return the configuration of a run on few samples.

    It is eager in fp32 at batch 8 unless overridden. ``model`` replaces facts of the model. A name
    stands for the benchmark's mini scale.
    """
    if isinstance(chosen, str):
        chosen = definition.load(chosen, "mini")
    small = shrink(chosen, *samples, **model)
    prepare(small.data, data_root)
    settings = [f"global_batch_size={BATCH}", "compile=off", "precision=fp32", *overrides]
    return configure(small, division=division, overrides=settings, data_root=data_root, seed=3)


def create(config: RunConfig, ranks: TorchRanks = ALONE) -> Any:
    """Return the benchmark's task on torch."""
    return find_create(import_task(config.definition, "torch"))(config, ranks)


def make_subject(config: RunConfig, task: Any = None, *overrides: str) -> Subject:
    """Return what a measurement of this configuration begins with; it shows nothing."""
    return Subject(config, ALONE, task, overrides, 2, lambda chosen: nullcontext(print))


def build(config: RunConfig, ranks: TorchRanks = ALONE, make: Make = create) -> Any:
    """Return a task that is built and has its data open; ``make`` may make a variant of it."""
    task = find_create(make)(config, ranks)
    task.build()
    task.open_data()
    return task


def take_samples(task: Any, count: int) -> None:
    """Let a task take so many samples in a step of noise, whatever its configuration says."""
    task.seat = dataclasses.replace(task.seat, batch=count)
    task.use_execution(task.execution)


def train(task: Any, samples: int) -> float:
    """Train on to ``samples``; return the mean loss."""
    loss: float = task.train(Block(1, task.samples, samples), lambda samples: None)
    return loss


def build_and_train(
    config: RunConfig, ranks: TorchRanks = ALONE, samples: int = 24, make: Make = create
) -> Any:
    """Return a task that has trained on some samples."""
    task = build(config, ranks, make)
    train(task, samples)
    return task


def train_on_this_rank(configure: Callable[..., RunConfig], *arguments: Any) -> Trained:
    """Train three steps with the configuration of these arguments, on all ranks there are.

    Gradients travel in buckets of 1 MiB, so that there are several, and sums between two nodes.
    """
    config = configure(*arguments)
    with start_ranks() as ranks:
        if ranks.world_size > 1:  # in a process of its own
            sharing.Replicated.bucket_mib = 1
        if config.execution.parallelism.all_reduce.way != "flat":
            ranks = dataclasses.replace(ranks, ranks_per_node=min(2, ranks.world_size))
        task = create(config, ranks)
        task.build()
        task.predict_noise = lambda: None  # a search of its longest translation takes seconds
        task.warm_up()
        task.open_data()
        task.evaluation_batch = 4  # neither it nor the ranks divide the evaluation set evenly
        losses = [train(task, step * config.global_batch_size) for step in (1, 2, 3)]
        quality, state = task.evaluate(), task.state()["model"]
        names = [name for name, _ in task.model.named_parameters()]
        weights = torch.cat([state[name].detach().flatten() for name in names])
        return Trained(losses, quality, weights[:: max(1, len(weights) // 1000)].tolist())


def assert_ranks_agree(
    world_size: int,
    configure: Callable[..., RunConfig],
    *arguments: Any,
    shared: Sequence[str] = (),
    tolerance: float = 1e-4,
) -> None:
    """Require of several ranks, with their ``shared`` settings, what one rank computes.

    ``configure`` is a function of a module, for processes to find.
    """
    alone = train_on_this_rank(configure, *arguments)  # and data are prepared
    first, *others = on_ranks(world_size, train_on_this_rank, configure, *arguments, *shared)
    assert all(other == first for other in others), "the ranks disagree"
    assert first.losses == pytest.approx(alone.losses, rel=tolerance, abs=tolerance / 10), "losses"
    assert first.quality == pytest.approx(alone.quality, rel=tolerance, abs=tolerance)
    assert first.weights == pytest.approx(alone.weights, rel=tolerance, abs=tolerance / 10)


def copy_weights(task: Any) -> Mapping[str, Tensor]:
    """Return a copy of the model's state."""
    owner: Any = task.maker if isinstance(task, GenerationTask) else task
    return {key: value.clone() for key, value in owner.model.state_dict().items()}


def flatten_weights(task: Any) -> Tensor:
    """Return a copy of all parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in task.model.parameters()])


def run_step(task: Any) -> tuple[float, dict[str, Tensor]]:
    """Run one step; return its loss and the gradients that the optimizer received, by name."""
    gradients: dict[str, Tensor] = {}

    def copy_gradients(*arguments: object) -> None:
        for name, parameter in task.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.clone()

    task.model.train()
    hook = task.optimizer.register_step_pre_hook(copy_gradients)
    loss = float(task.step())
    hook.remove()
    return loss, gradients


def look_at_step(task: Any) -> tuple[float, dict[str, Tensor]]:
    """Run one step; return its loss, its gradients and the statistics that it leaves."""
    loss, values = run_step(task)
    return loss, values | {key: value.clone() for key, value in task.model.named_buffers()}


def count_calls(task: Any, function: Callable[[Any], Result]) -> tuple[int, Result]:
    """Return how often modules of the network are called by ``function(task)``, and its result."""
    calls = [0]

    def count(*arguments: object) -> None:
        calls[0] += 1

    hooks = [module.register_forward_pre_hook(count) for module in task.model.modules()]
    result = function(task)
    for hook in hooks:
        hook.remove()
    return calls[0], result


class CountWaits(TorchFunctionMode):
    """Counts how often the host asks for values: on an accelerator it waits each time."""

    ASKS = (
        *(Tensor.tolist, Tensor.item, Tensor.cpu, Tensor.nonzero, torch.nonzero),
        *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__),
    )

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += func in self.ASKS
        return func(*args, **(kwargs or {}))


def run_backward(task: Any) -> float:
    """Leave the gradients of the next step in the parameters, unclipped; return the loss."""
    task.model.train()
    return float(task.loss_and_gradients())


def count_versions(task: Any) -> int:
    """Return the number of versions of the weights that a task with delayed gradients keeps."""
    return len(task.loss_and_gradients.versions)


def take_batch(task: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the next step."""
    (piece,) = task.move(task.next_pieces())
    return piece.inputs, piece.targets


def assert_same(first: Mapping[str, Any], second: Mapping[str, Any], what: str) -> None:
    """Require the same tensors bit for bit."""
    for key, value in first.items():
        assert torch.equal(value, second[key]), f"{what}: {key} differs"


def assert_alike(
    first: Mapping[str, Any], second: Mapping[str, Any], what: str, share: float = 1e-4
) -> None:
    """Require tensors that are equal but for rounding: a difference small beside the values."""
    assert first.keys() == second.keys()
    for key, value in first.items():
        difference = float((second[key].double() - value.double()).norm())
        assert difference <= share * float(value.double().norm()) + 1e-7, f"{what}: {key} differs"


def assert_same_gradients(network: nn.Module, expected: Iterable[Tensor | None]) -> None:
    """Compare the gradients of a network with those that are expected, in its order and shapes.

    An activation that rounding moves across zero takes another slope: 1e-3 here and there.
    """
    for gradient, (name, parameter) in zip(expected, network.named_parameters(), strict=True):
        assert gradient is not None, name
        assert parameter.grad is not None, name
        difference = ((parameter.grad - gradient).norm() / gradient.norm()).item()
        assert difference < 0.01, f"{name}: {difference:.1e}"
