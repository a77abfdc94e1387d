"""What is measured: a task that is ready, its measurements in turns, and the lines of a table."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks import registry
from cepheid.measure.engine.turns import (
    Comparison,
    Timing,
    time_in_turns,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.progress import OnProgress
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.session.observer import OnCount
from cepheid.rules.definition import Definition

if TYPE_CHECKING:
    from cepheid.reference.machine.ranks import Ranks
    from cepheid.reference.torch.ranks.distributed import TorchRanks


STEPS = 10  # of each turn
PLAIN = "plain eager float32"
MIB = 1024**2


@dataclass(frozen=True)
class Row:
    """A line of the table: what was measured, against what, and the result."""

    what: str
    result: str
    reference: str = ""
    against: str = ""


@dataclass(frozen=True)
class Measurement:
    """The lines that a reader sees, and all facts for the JSON file."""

    rows: Sequence[Row]
    facts: Mapping[str, Any]


def show_nothing(title: str, unit: str) -> AbstractContextManager[OnCount]:
    """Show no progress of work that is counted."""
    return nullcontext(lambda done, total: None)


@dataclass(frozen=True)
class Subject:
    """The task of the reference, ready to train, and how to measure it.

    ``overrides`` are the settings of ``--set``; ``rounds`` is the number of turns of each side;
    ``open_display`` makes the display with which the timed loop is measured; ``count`` shows the
    progress of the measurement, given its title and unit.
    """

    config: RunConfig
    ranks: "TorchRanks"
    task: Any
    overrides: Sequence[str]
    rounds: int
    open_display: Callable[[Definition], AbstractContextManager[OnProgress]] = field(repr=False)
    count: Callable[[str, str], AbstractContextManager[OnCount]] = field(
        default=show_nothing, repr=False
    )

    def time(self, what: str, measures: Mapping[str, Callable[[], float]]) -> tuple[Timing, ...]:
        """Call ``measures``, which return seconds, in turns, and show the rounds that are done."""
        with self.count(what, "rounds") as on_round:
            return time_in_turns(self.rounds, measures, on_round)

    def compare(
        self, what: str, baseline: str, time_baseline: Callable[[], float],
        time_reference: Callable[[], float],
    ) -> Comparison:  # fmt: skip
        """Compare the reference with a baseline in turns."""
        measures = {baseline: time_baseline, "reference": time_reference}
        return Comparison(what, *self.time(what, measures))


Measure = Callable[[Subject], Measurement]
Create = Callable[[RunConfig, Any], Any]


def pick_create(module: Any) -> Create:
    """Return ``create_for_timing``, which needs no trained weights, or else ``create``."""
    create: Create = getattr(module, "create_for_timing", None) or find_create(module)
    return create


def make_ready_task(create: Create, config: RunConfig, ranks: "Ranks") -> Any:
    """Create a task, build and warm it up, and open its data."""
    task = create(config, ranks)
    task.build()
    if generation := config.definition.generation:
        task.warm_up(generation.warm_up_images)
    else:
        task.warm_up()
        task.open_data()
    return task


def make_plain_task(subject: Subject) -> Any:
    """Create the task of the benchmark's ``plain.py``, ready, on as many threads."""
    module = registry.import_module(subject.config.definition.name, "plain")
    threads = str(subject.task.implementation()["threads_per_rank"])
    execution = replace(subject.config.execution, precision="fp32", compile="off", threads=threads)
    config = replace(subject.config, execution=execution)
    return make_ready_task(find_create(module), config, subject.ranks)


def describe_comparison(compared: Comparison, result: str = "") -> Row:
    """Return the line of the table for a comparison, by default with its ratio as the result."""
    return Row(
        what=compared.what,
        against=f"{compared.baseline.label}: {format_timing(compared.baseline)}",
        reference=format_timing(compared.reference),
        result=result or f"{compared.ratio:.2f} times as fast",
    )


def format_timing(timing: Timing) -> str:
    """Return the median and the middle half in milliseconds."""
    first, third = (1000 * seconds for seconds in timing.quartiles_seconds)
    digits = 1 if first < 1000 else 0
    median = f"{1000 * timing.median_seconds:,.{digits}f}"
    return f"{median} ms ({first:,.{digits}f} to {third:,.{digits}f})"
