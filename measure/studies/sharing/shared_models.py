"""Measure how ranks share a model: pipelines and tensor parallelism beside data parallelism.

This is a measurement of ``cepheid measure speed`` for benchmarks that have the settings of
``cepheid.reference.torch.parallel.model_parallel``.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

from cepheid.measure.engine.links import count_bytes
from cepheid.measure.engine.memory import SavedBytes, count_state_bytes
from cepheid.measure.engine.subject import MIB, Measure, Measurement, Row, Subject, format_timing
from cepheid.measure.engine.turns import take_steps, time_steps
from cepheid.measure.studies.sharing.exchange import require_ranks
from cepheid.reference.run.execution import Schedule
from cepheid.reference.torch.parallel.pipeline import Pipeline
from cepheid.reference.torch.parallel.plan import STAGES, TENSOR_RANKS
from cepheid.rules.errors import UserError

STEPS = 3  # of each turn
MICRO_BATCHES = (2, 4, 8, 16, 32)
MICRO_BATCHES = (2, 4, 8, 16, 32)
DATA_PARALLEL = "data parallel"


def compare_shared_models(subject: Subject) -> Measurement:
    """Compare data parallelism with pipelines and shared matrices: time, bubble, bytes, memory."""
    require_ranks(subject, "a model is shared by several ranks")
    tasks, impossible = {}, []
    for label, settings in _list_arms(subject).items():
        try:
            tasks[label] = subject.make_variant(**settings)
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
        sent = count_bytes(subject.ranks, partial(take_steps, task, 1))
        fact["sent_bytes"] = max(map(sum, sent))  # of the rank that sends most
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


def _time_turn(subject: Subject, task: Any, busy: list[list[float]]) -> float:
    """Return the mean seconds of a step; append the share in which each stage computes to ``busy``.

    The time of a pipeline excludes the data, the sum of the gradients and the update.
    """
    if not isinstance(task.shared, Pipeline):
        return time_steps(task, STEPS)
    task.shared.seconds = in_pipeline = 0.0

    @contextmanager
    def time_phase(phase: str) -> Iterator[None]:
        nonlocal in_pipeline
        start = time.perf_counter()
        yield
        in_pipeline += time.perf_counter() - start if phase == "pipeline" else 0.0

    task.phase = time_phase
    seconds = time_steps(task, STEPS)
    busy.append(subject.ranks.all_gather_object(task.shared.seconds / in_pipeline))
    return seconds


def _count_memory(subject: Subject, task: Any) -> dict[str, int]:
    """Return bytes of the rank with most: gradients, optimizer, what the backward pass keeps.

    Weights are not counted: every rank has the whole model, to evaluate it.
    """
    task.model.train()
    trained = task.shared.list_trained() if task.shared else list(task.model.parameters())
    saved = SavedBytes.beside(trained)
    with saved.count():
        task.step()
    own = {
        "gradient_bytes": sum(parameter.nbytes for parameter in trained),
        "state_bytes": count_state_bytes(task.optimizer),
        "activation_bytes": saved.most,
    }
    of_ranks = subject.ranks.all_gather_object(own)
    return {key: max(each[key] for each in of_ranks) for key in own}


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


MEASUREMENTS: Mapping[str, Measure] = {"shared": compare_shared_models}
