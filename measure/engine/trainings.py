"""Run the reference again and again to learn how it converges, and keep the quality curves."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.provenance import HARDWARE, keep_current, lock_record
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve, Evidence
from cepheid.rules.host import require_checkout

if TYPE_CHECKING:
    from cepheid.measure.engine.study import Request
    from cepheid.reference.run.progress import OnProgress, Progress
    from cepheid.reference.torch.ranks.distributed import TorchRanks

K = TypeVar("K")
CORRECT = "correct"
"""The variant of a run of the unbroken reference."""


@dataclass(frozen=True)
class Training:
    """One run to make: what the user calls it, its variant and its configuration.

    ``source`` has its task where that is not the benchmark's own (``find_create``).
    """

    what: str
    variant: str
    config: RunConfig
    source: Any = None

    @property
    def title(self) -> str:
        """The name of the run for the user."""
        return f"{self.what}, seed {self.config.seed}"

    def create(self, ranks: "TorchRanks") -> Any:
        """Return the task of this run."""
        source = self.source or import_task(self.config.definition, "torch")
        return find_create(source)(self.config, ranks)


def train_all(
    definition: Definition, trainings: Sequence[Training], data_root: Path, observer: Observer
) -> Iterator[tuple[Training, Curve]]:
    """Make runs one after the other, on data that are prepared first.

    Yields each run with its quality curve, which says what it ran on. Starts nothing if
    there are no runs to make. Raises UserError for what a task refuses, such as an uneven
    ``micro_batch``, before data are prepared, and in an installation, since the curves are recorded
    beside the definition.
    """
    if not trainings:
        return
    require_checkout(f"a record of {definition.name}")
    from cepheid.reference.machine import system
    from cepheid.reference.torch.ranks.distributed import start_ranks

    with start_ranks() as ranks:
        for training in trainings:
            training.create(ranks)
        prepare_data(definition, data_root, observer)
        code = keep_current(definition.name, data_root) if ranks.is_first else ""
        description = system.describe("local", ranks)
        hardware = {key: description[key] for key in HARDWARE}
        for number, training in enumerate(trainings, 1):
            observer.tell(f"{training.title} (run {number} of {len(trainings)})")
            with observer.show_run(definition) as on_progress:
                curve = train(training, ranks, on_progress)
            yield training, replace(curve, code=code, measured={**curve.measured, **hardware})


def train(training: Training, ranks: "TorchRanks", on_progress: "OnProgress") -> Curve:
    """Make one run, to the targets or through the whole budget.

    Returns its quality curve with the facts about its implementation. Of a run that generates, only
    the images that are judged are made: their noise is their own, and nothing is timed.
    """
    from cepheid.reference.run.log import RunLogWriter
    from cepheid.reference.run.task import run_task
    from cepheid.reference.torch.backend import free_earlier_tasks

    evaluations: list[tuple[int, Mapping[str, float]]] = []
    start, is_finite = 0.0, True

    def record(progress: "Progress") -> None:
        nonlocal start
        if progress.stage.is_repeated and not start:
            start = time.monotonic()
        if progress.quality is not None:
            evaluations.append((progress.samples, progress.quality))
        on_progress(progress)

    free_earlier_tasks()
    task = training.create(ranks)
    if asked := training.config.definition.generation:
        start = time.monotonic()
        task.build()
        task.open_data()
        images = task.decode(task.sample(asked.counts[-1], asked.repetitions[-1] - 1))
        evaluations.append((asked.images, task.evaluate(images)))
    else:
        is_finite = run_task(task, training.config, RunLogWriter(None), record).is_finite
    seconds = time.monotonic() - start
    measured = _drop_reasons(task.implementation())
    return Curve(
        training.variant, training.config.seed, seconds, tuple(evaluations), "", measured, is_finite
    )


def _drop_reasons(implementation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about a run without times, which are others in every run."""
    execution = dict(implementation.get("execution", {}))
    execution.pop("because", None)
    facts = {key: value for key, value in implementation.items() if not key.endswith("_ms")}
    return {**facts, **({"execution": execution} if execution else {})}


def record_missing(
    definition: Definition,
    wanted: Sequence[Training],
    data_root: Path,
    observer: Observer,
    file: str = evidence.FILE,
) -> Evidence:
    """Make the runs that ``file`` does not have for this definition, and return all of them.

    Each run is recorded as soon as it ends, beside those that another process has recorded
    meanwhile.
    """
    have = {(curve.variant, curve.seed) for curve in _load(definition, file).curves}
    missing = [each for each in wanted if (each.variant, each.config.seed) not in have]
    recorded = _load(definition, file)
    for _, curve in train_all(definition, missing, data_root, observer):
        recorded = keep(definition, curve, file)
    return recorded


def record_each(request: "Request", wanted: Mapping[K, Training], file: str) -> Mapping[K, Curve]:
    """Make the runs that ``file`` does not have; return the quality curve of each."""
    trainings, root = list(wanted.values()), request.data_root
    recorded = record_missing(request.definition, trainings, root, request.observer, file)
    made = {(curve.variant, curve.seed): curve for curve in recorded.curves}
    return {key: made[each.variant, each.config.seed] for key, each in wanted.items()}


def keep(definition: Definition, curve: Curve, file: str = evidence.FILE) -> Evidence:
    """Add a run to the file, in place of one of the same variant and seed; return all."""
    with lock_record(definition.name, file):
        others = [
            each
            for each in _load(definition, file).curves
            if (each.variant, each.seed) != (curve.variant, curve.seed)
        ]
        recorded = Evidence(definition.digest, (*others, curve))
        evidence.save(definition.name, definition.scale, recorded, file)
    return recorded


def _load(definition: Definition, file: str) -> Evidence:
    """Return the runs that are recorded for this very definition."""
    return evidence.load(definition, file) or Evidence(definition.digest, ())
