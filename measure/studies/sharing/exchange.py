"""Measure how ranks share the update of the weights and sum gradients, on several ranks.

These are measurements of ``cepheid measure speed`` for benchmarks whose task is a ``ParallelTask``.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from cepheid.measure.engine.links import count_bytes, predict_bytes
from cepheid.measure.engine.step_profiler import profile_steps
from cepheid.measure.engine.subject import MIB, STEPS, Measurement, Row, Subject, format_timing
from cepheid.measure.engine.turns import Timing, time_steps
from cepheid.rules.errors import UserError

WEIGHT_UPDATES = ("replicated", "sharded", "overlapped")
FLAT = "flat"


def compare_updates(subject: Subject) -> Measurement:
    """Compare steps with the update on every rank, sharded, and overlapped, in turns."""
    tasks = {way: _make_task(subject, weight_update=way) for way in WEIGHT_UPDATES}
    rows, facts = [], {}
    for timing in _time_in_turns(subject, tasks):
        task = tasks[timing.label]
        sent = _count_bytes_of_step(subject, task)[subject.ranks.rank]
        shares = profile_steps(task, STEPS).shares
        state = _count_state_bytes(task)
        gathered = shares.get("gather", 0.0)
        rows.append(
            Row(
                f"update {timing.label}, step of {task.config.global_batch_size} samples",
                f"update {shares['update']:.1%} and gathering {gathered:.1%} of a profiled step; "
                f"{sum(sent) / MIB:.2f} MiB sent per rank; {state / MIB:.2f} MiB of state per rank",
                format_timing(timing),
            )
        )
        facts[timing.label] = {
            "seconds": timing.seconds,
            "shares": dict(shares),
            "sent_bytes": sum(sent),
            "state_bytes": state,
        }
    return Measurement(rows, facts)


def compare_sums(subject: Subject) -> Measurement:
    """Compare steps with a flat sum of gradients and sums over each possible mesh."""
    count = subject.ranks.world_size
    tasks = {FLAT: _make_task(subject, all_reduce=FLAT)}
    for number in range(2, count + 1):
        if count % number == 0:
            task = _make_task(subject, all_reduce=f"mesh:{number}")
            tasks[f"{number} x {count // number}"] = task
    rows, facts = [], {}
    for timing in _time_in_turns(subject, tasks):
        task = tasks[timing.label]
        table = _count_bytes_of_step(subject, task)
        columns = task.mesh_shape[1]
        pairs = [(a, b) for a in range(count) for b in range(count)]
        within = sum(table[a][b] for a, b in pairs if a // columns == b // columns) / count
        between = sum(map(sum, table)) / count - within
        size = sum(weight.nbytes for weight in task.model.parameters())
        formula = predict_bytes(size, task.mesh_shape)
        rows.append(
            Row(
                f"sum {timing.label}, step of {task.config.global_batch_size} samples",
                f"{within / MIB:.2f} MiB sent within the row (formula {formula[0] / MIB:.2f}), "
                f"{between / MIB:.2f} MiB to other rows (formula {formula[1] / MIB:.2f}) per rank",
                format_timing(timing),
            )
        )
        facts[timing.label] = {"seconds": timing.seconds, "sent_bytes": table, "formula": formula}
    return Measurement(rows, facts)


def _make_task(subject: Subject, **settings: str) -> Any:
    """Return a task that computes as that of ``subject`` but for ``settings``, ready to train."""
    if subject.ranks.world_size == 1:
        raise UserError(
            "ranks that exchange something are measured on several ranks; fix: start "
            "torchrun --standalone --nproc-per-node 2 -m cepheid.tools.measure speed …"
        )
    execution = subject.task.execution
    for setting, value in settings.items():
        execution = execution.with_setting(setting, value)
    config = replace(subject.config, execution=execution)
    task = type(subject.task)(config, subject.ranks)
    task.build()
    task.open_data()
    return task


def _time_in_turns(subject: Subject, tasks: Mapping[str, Any]) -> tuple[Timing, ...]:
    measures = {way: partial(time_steps, task, STEPS) for way, task in tasks.items()}
    return subject.time("steps", measures)


def _count_bytes_of_step(subject: Subject, task: Any) -> list[list[int]]:
    """Return the bytes that each rank sends each other one in a step, a mean of several."""

    def take_steps() -> None:
        for _ in range(STEPS):
            task.step()

    task.model.train()
    return [[count // STEPS for count in sent] for sent in count_bytes(subject.ranks, take_steps)]


def _count_state_bytes(task: Any) -> int:
    """Return the bytes of the optimizer's state on this rank."""
    values = chain.from_iterable(state.values() for state in task.optimizer.state.values())
    return sum(value.nbytes for value in values if hasattr(value, "nbytes"))


MEASUREMENTS: Mapping[str, Callable[[Subject], Measurement]] = {
    "update": compare_updates,
    "sums": compare_sums,
}
