"""Measure how ranks share the update of the weights and sum gradients, on several ranks.

These are measurements of ``cepheid measure speed`` for benchmarks whose task is a ``ParallelTask``.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from cepheid.measure.engine.links import count_bytes, predict_bytes
from cepheid.measure.engine.memory import count_state_bytes
from cepheid.measure.engine.subject import (
    MIB,
    STEPS,
    Measure,
    Measurement,
    Row,
    Subject,
    format_timing,
)
from cepheid.measure.engine.turns import Timing, profile_steps, take_steps, time_steps
from cepheid.rules.errors import UserError

WEIGHT_UPDATES = ("replicated", "sharded", "overlapped")
FLAT = "flat"


def compare_updates(subject: Subject) -> Measurement:
    """Compare steps with the update on every rank, sharded, and overlapped, in turns."""
    require_ranks(subject, "ranks that exchange something are measured on several ranks")
    tasks = {way: subject.make_variant(weight_update=way) for way in WEIGHT_UPDATES}
    rows, facts = [], {}
    for timing in _time_in_turns(subject, tasks):
        task = tasks[timing.label]
        sent = sum(_count_bytes_of_step(subject, task)[subject.ranks.rank])
        shares = profile_steps(task, STEPS).shares
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
    for timing in _time_in_turns(subject, tasks):
        task = tasks[timing.label]
        table = _count_bytes_of_step(subject, task)
        columns = task.mesh_shape[1]
        pairs = [(a, b) for a in range(count) for b in range(count)]
        within = sum(table[a][b] for a, b in pairs if a // columns == b // columns) / count
        between = sum(map(sum, table)) / count - within
        size = sum(weight.nbytes for weight in task.model.parameters())
        formula = predict_bytes(size, task.mesh_shape)
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


def _time_in_turns(subject: Subject, tasks: Mapping[str, Any]) -> tuple[Timing, ...]:
    measures = {way: partial(time_steps, task, STEPS) for way, task in tasks.items()}
    return subject.time("steps", measures)


def _count_bytes_of_step(subject: Subject, task: Any) -> list[list[int]]:
    """Return the bytes that each rank sends each other one in a step, a mean of several."""
    table = count_bytes(subject.ranks, partial(take_steps, task, STEPS))
    return [[count // STEPS for count in sent] for sent in table]


MEASUREMENTS: Mapping[str, Measure] = {"update": compare_updates, "sums": compare_sums}
