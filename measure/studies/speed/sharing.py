"""Measure how ranks share updates, sums of gradients and models, on several ranks.

These are measurements of `cepheid measure speed`, for benchmarks with the settings of
``cepheid.reference.torch.parallel``.
"""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

from cepheid.measure.engine.byte_counts import (
    SavedBytes,
    count_bytes,
    count_state_bytes,
    predict_bytes,
)
from cepheid.measure.engine.phases import profile_steps
from cepheid.measure.engine.turns import (
    MIB,
    STEPS,
    Measure,
    Measurement,
    Row,
    Subject,
    fit_steps,
    format_timing,
    take_steps,
    time_steps,
)
from cepheid.reference.run.execution import Schedule
from cepheid.reference.torch.parallel.pipeline import Pipeline
from cepheid.reference.torch.parallel.plan import STAGES, TENSOR_RANKS
from cepheid.rules.errors import UserError

WEIGHT_UPDATES = ("replicated", "sharded", "overlapped")
FLAT = "flat"


def compare_updates(subject: Subject) -> Measurement:
    """Compare steps with the update on every rank, sharded, and overlapped, in turns."""
    require_ranks(subject, "ranks that exchange something are measured on several ranks")
    tasks = {way: subject.make_variant(weight_update=way) for way in WEIGHT_UPDATES}
    rows, facts = [], {}
    steps = fit_steps(subject.task, STEPS)
    for timing in subject.time_tasks("steps", tasks, steps):
        task = tasks[timing.label]
        sent = sum(_count_bytes_of_step(subject, task, steps)[subject.ranks.rank])
        shares = profile_steps(task, steps).shares
        state = count_state_bytes(task.optimizer)
        text = (
            f"update {shares['update']:.1%} and gathering {shares.get('gather', 0.0):.1%} of a "
            f"profiled step; {sent / MIB:.2f} MiB sent per rank; {state / MIB:.2f} MiB of state "
            "per rank"
        )
        what = f"update {timing.label}, step of {task.config.global_batch_size} samples"
        rows.append(Row(what, text, format_timing(timing)))
        facts[timing.label] = {
            "seconds": timing.seconds,
            "shares": dict(shares),
            "sent_bytes": sent,
            "state_bytes": state,
        }
    return Measurement(rows, facts)


def compare_sums(subject: Subject) -> Measurement:
    """Compare steps with a flat sum of gradients and sums over each possible mesh."""
    require_ranks(subject, "ranks that exchange something are measured on several ranks")
    count = subject.ranks.world_size
    tasks = {FLAT: subject.make_variant(all_reduce=FLAT)}
    for number in range(2, count + 1):
        if count % number == 0:
            task = subject.make_variant(all_reduce=f"mesh:{number}")
            tasks[f"{number} x {count // number}"] = task
    rows, facts = [], {}
    steps = fit_steps(subject.task, STEPS)
    for timing in subject.time_tasks("steps", tasks, steps):
        task = tasks[timing.label]
        table = _count_bytes_of_step(subject, task, steps)
        shape = task.sharing.mesh_shape
        columns = shape[1]
        pairs = [(a, b) for a in range(count) for b in range(count)]
        within = sum(table[a][b] for a, b in pairs if a // columns == b // columns) / count
        between = sum(map(sum, table)) / count - within
        size = sum(weight.nbytes for weight in task.model.parameters())
        formula = predict_bytes(size, shape)
        text = (
            f"{within / MIB:.2f} MiB sent within the row (formula {formula[0] / MIB:.2f}), "
            f"{between / MIB:.2f} MiB to other rows (formula {formula[1] / MIB:.2f}) per rank"
        )
        what = f"sum {timing.label}, step of {task.config.global_batch_size} samples"
        rows.append(Row(what, text, format_timing(timing)))
        facts[timing.label] = {"seconds": timing.seconds, "sent_bytes": table, "formula": formula}
    return Measurement(rows, facts)


def require_ranks(subject: Subject, why: str) -> None:
    """Raise UserError with the reason ``why`` where there is one rank alone."""
    if subject.ranks.world_size == 1:
        raise UserError(
            f"{why}; fix: start "
            "torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure speed …"
        )


def _count_bytes_of_step(subject: Subject, task: Any, steps: int) -> list[list[int]]:
    """Return the bytes that each rank sends each other one in a step, a mean of ``steps``."""
    table = count_bytes(subject.ranks, partial(take_steps, task, steps))
    return [[count // steps for count in sent] for sent in table]


EXCHANGE: Mapping[str, Measure] = {"update": compare_updates, "sums": compare_sums}


SHARED_STEPS = 3  # of each turn
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
        return time_steps(task, SHARED_STEPS)
    task.shared.seconds = in_pipeline = 0.0

    @contextmanager
    def time_phase(phase: str) -> Iterator[None]:
        nonlocal in_pipeline
        start = time.perf_counter()
        yield
        in_pipeline += time.perf_counter() - start if phase == "pipeline" else 0.0

    task.phase = time_phase
    seconds = time_steps(task, SHARED_STEPS)
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


MODELS: Mapping[str, Measure] = {"shared": compare_shared_models}
