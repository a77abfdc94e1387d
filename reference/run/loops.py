"""The choice of the timed loop: each kind of benchmark has its own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from cepheid.reference.run import generate, train
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress, Outcome, Progress, Stage, ignore_progress
from cepheid.rules.events import Kind

LOOPS: Mapping[Kind, Callable[..., Outcome]] = MappingProxyType(
    {"train": train.run, "generate": generate.run}
)


def run_task(
    task: Any, config: RunConfig, log: RunLogWriter, on_progress: OnProgress = ignore_progress
) -> Outcome:
    """Run a task by the loop for its kind of benchmark, and return how the run ended.

    Then, outside the clock, what it read is digested and logged (rule T27).

    ``task`` keeps the protocol of that loop: ``train.Task`` or ``generate.Generator``.
    """
    run = LOOPS[config.definition.kind]
    outcome = run(config.definition, task, config, log, on_progress)
    on_progress(Progress(Stage.VERIFYING, outcome.samples))
    read = task.digest_data()
    log.event("data_read", read.digest)
    return replace(outcome, data_problem=read.problem)
