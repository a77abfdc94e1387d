"""Measure how ranks share a model: pipelines and tensor parallelism beside data parallelism.

This is a measurement of ``cepheid measure speed`` for benchmarks that have the settings of
``cepheid.reference.torch.parallel.model_parallel``.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, get_args

import torch
from torch import Tensor

from cepheid.measure.engine.links import count_bytes
from cepheid.measure.engine.subject import MIB, Measurement, Row, Subject, format_timing
from cepheid.measure.engine.turns import time_steps
from cepheid.reference.run.execution import Schedule
from cepheid.reference.torch.parallel.pipeline import Pipeline
from cepheid.reference.torch.parallel.plan import STAGES, TENSOR_RANKS
from cepheid.rules.errors import UserError

STEPS = 3  # of each turn
MICRO_BATCHES = (2, 4, 8, 16, 32)
DATA_PARALLEL = "data parallel"


def compare_shared_models(subject: Subject) -> Measurement:
    """Compare data parallelism with pipelines and shared matrices: time, bubble, bytes, memory."""
    if subject.ranks.world_size == 1:
        raise UserError(
            "a model is shared by several ranks; fix: start "
            "torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure speed …"
        )
    tasks, impossible = {}, []
    for label, settings in _list_arms(subject).items():
        try:
            tasks[label] = _make_task(subject, settings)
        except UserError as error:
            impossible.append(Row(label, f"not possible: {error}"))
    busy: dict[str, list[list[float]]] = {label: [] for label in tasks}
    measures = {
        label: partial(_time_turn, subject, task, busy[label]) for label, task in tasks.items()
    }
    rows, facts = [], {}
    for timing in subject.time("steps", measures):
        task = tasks[timing.label]
        fact = {"seconds": timing.seconds, **_count_memory(subject, task)}
        fact["sent_bytes"] = _count_sent_bytes(subject, task)
        if isinstance(task.shared, Pipeline):
            turns = busy[timing.label][1:]  # without the turn before the first one
            stages = [statistics.median(shares) for shares in zip(*turns, strict=True)]
            count = task.sharing.micro_batches
            fact["bubble"] = [1 - statistics.mean(shares) for shares in turns]
            fact["formula"] = predict_bubble([1.0] * len(stages), count)
            fact["formula_of_stages"] = predict_bubble(stages, count)
        rows.append(Row(timing.label, _describe(fact), format_timing(timing)))
        facts[timing.label] = fact
    return Measurement([*rows, *impossible], facts)


def predict_bubble(stages: Sequence[float], micro_batches: int) -> float:
    """Return the share of a pipeline's time in which a stage waits, in the mean over ``stages``.

    These are the times that they compute, in any unit. The first micro-batch takes the time of all
    stages, and each other one that of the slowest. p equal stages wait (p - 1) / (m + p - 1).
    """
    total = sum(stages) + (micro_batches - 1) * max(stages)
    return 1 - micro_batches * statistics.mean(stages) / total


def _list_arms(subject: Subject) -> dict[str, dict[str, str]]:
    """Return the settings of each arm: all that the definition has for so many ranks."""
    choices = subject.config.definition.execution
    count = str(subject.ranks.world_size)
    arms: dict[str, dict[str, str]] = {DATA_PARALLEL: {}}
    if count in choices.get(STAGES, ()):
        for number in [number for number in MICRO_BATCHES if number >= int(count)][:3]:
            for schedule in get_args(Schedule):
                settings = {STAGES: f"{count}:{schedule}:{number}"}
                arms[f"{count} stages, {schedule}, {number} micro-batches"] = settings
    if count in choices.get(TENSOR_RANKS, ()):
        arms[f"matrices on {count} ranks"] = {TENSOR_RANKS: count}
    return arms


def _make_task(subject: Subject, settings: Mapping[str, str]) -> Any:
    """Return a task that computes as that of ``subject`` but for ``settings``, ready to train."""
    execution = subject.task.execution
    for setting, value in settings.items():
        execution = execution.with_setting(setting, value)
    task = type(subject.task)(replace(subject.config, execution=execution), subject.ranks)
    task.build()
    task.open_data()
    return task


def _time_turn(subject: Subject, task: Any, busy: list[list[float]]) -> float:
    """Return the mean seconds of a step; append the share in which each stage computes to ``busy``.

    The time of a pipeline excludes the data, the sum of the gradients and the update.
    """
    if not isinstance(task.shared, Pipeline):
        return time_steps(task, STEPS)
    phases = _PhaseTimes()
    task.shared.seconds, task.phase = 0.0, phases.time
    seconds = time_steps(task, STEPS)
    busy.append(subject.ranks.all_gather_object(task.shared.seconds / phases.seconds))
    return seconds


class _PhaseTimes:
    """The seconds that a task spends in its pipeline."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, phase: str) -> AbstractContextManager[object]:
        return _Stopwatch(self, phase == "pipeline")


@dataclass
class _Stopwatch(AbstractContextManager[object]):
    times: _PhaseTimes
    counts: bool
    started: float = 0.0

    def __enter__(self) -> object:
        self.started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        if self.counts:
            self.times.seconds += time.perf_counter() - self.started


def _count_sent_bytes(subject: Subject, task: Any) -> int:
    """Return the bytes that the rank which sends most sends in a step."""
    task.model.train()
    return max(sum(sent) for sent in count_bytes(subject.ranks, task.step))


def _count_memory(subject: Subject, task: Any) -> dict[str, int]:
    """Return bytes of the rank with most: gradients, optimizer, what the backward pass keeps.

    Weights are not counted: every rank has the whole model, to evaluate it.
    """
    task.model.train()
    trained = task.shared.list_trained() if task.shared else list(task.model.parameters())
    saved = SavedBytes({parameter.data_ptr() for parameter in trained})
    with torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
        task.step()
    states = chain.from_iterable(state.values() for state in task.optimizer.state.values())
    own = {
        "gradient_bytes": sum(parameter.nbytes for parameter in trained),
        "state_bytes": sum(value.nbytes for value in states if isinstance(value, Tensor)),
        "activation_bytes": saved.most,
    }
    of_ranks = subject.ranks.all_gather_object(own)
    return {key: max(each[key] for each in of_ranks) for key in own}


@dataclass
class SavedBytes:
    """The bytes that a forward pass keeps for the backward pass: now, and at most.

    Tensors whose addresses are ``ignored``, such as parameters, do not count, and each storage
    counts once.
    """

    ignored: set[int] = field(default_factory=set)
    most: int = 0
    _kept: dict[int, list[int]] = field(default_factory=dict)  # uses and bytes, by address

    def pack(self, tensor: Tensor) -> "_Kept":
        """Count ``tensor``, of any shape, until nobody needs it."""
        return _Kept(self, tensor)

    def unpack(self, kept: "_Kept") -> Tensor:
        """Return the tensor, of any shape, as it was."""
        return kept.tensor

    def add(self, address: int, size: int) -> None:
        """Count a use of a storage."""
        self._kept.setdefault(address, [0, size])[0] += 1
        self.most = max(self.most, sum(size for _, size in self._kept.values()))

    def remove(self, address: int) -> None:
        """Count a use less."""
        self._kept[address][0] -= 1
        if not self._kept[address][0]:
            del self._kept[address]


class _Kept:
    """A tensor that is counted while it exists."""

    def __init__(self, counter: SavedBytes, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.tensor, self.counter, self.address = tensor, counter, storage.data_ptr()
        self.counts = self.address not in counter.ignored
        if self.counts:
            counter.add(self.address, storage.nbytes())

    def __del__(self) -> None:
        if self.counts:
            self.counter.remove(self.address)


def _describe(fact: Mapping[str, Any]) -> str:
    """Return the numbers of an arm as text."""
    held = [fact[f"{what}_bytes"] / MIB for what in ("gradient", "state", "activation")]
    text = (
        f"{fact['sent_bytes'] / MIB:.2f} MiB sent; MiB of gradients, optimizer, activations: "
        f"{held[0]:.2f}, {held[1]:.2f}, {held[2]:.2f}"
    )
    if "bubble" not in fact:
        return text
    bubble = statistics.median(fact["bubble"])
    formulas = f"{fact['formula']:.0%}, with these stages {fact['formula_of_stages']:.0%}"
    return f"bubble {bubble:.0%} (formula {formulas}); {text}"
