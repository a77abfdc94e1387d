"""Measuring whether a benchmark's targets separate a correct implementation from broken ones."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from reference.run.config import RunConfig
from reference.run.log import RunLogWriter
from reference.run.loops import run_task
from reference.run.progress import OnProgress, Progress
from reference.torch.compilation import free_earlier_tasks
from reference.torch.distributed import TorchRanks
from rules.evidence import Curve

TaskFactory = Callable[[RunConfig, TorchRanks], Any]


def measure(
    variant: str,
    create: TaskFactory,
    config: RunConfig,
    ranks: TorchRanks,
    on_progress: OnProgress,
) -> tuple[Curve, Mapping[str, Any]]:
    """The quality curve of one run, to the targets or the full budget, and how it was computed."""
    evaluations: list[tuple[int, Mapping[str, float]]] = []
    started_seconds = 0.0

    def record(progress: Progress) -> None:
        nonlocal started_seconds
        if progress.stage.is_repeated and not started_seconds:
            started_seconds = time.monotonic()
        if progress.quality is not None:
            evaluations.append((progress.samples, progress.quality))
        on_progress(progress)

    free_earlier_tasks()
    task = create(config, ranks)
    run_task(task, config, RunLogWriter(None), record)
    seconds = time.monotonic() - started_seconds
    return Curve(variant, config.seed, seconds, tuple(evaluations)), task.implementation()
