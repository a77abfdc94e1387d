"""What is measured: a task that is ready, its measurements in turns, and the lines of a table.

All that measurements do with a task as a whole goes through ``make_task`` and ``turns``.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks import registry
from cepheid.measure.engine.turns import Comparison, Timing, time_in_turns, time_once
from cepheid.reference.run.config import RunConfig, configure
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
Create = Callable[[RunConfig, Any], Any]

configure_open = partial(configure, division="open", seed=1)
"""Configures a run of the open division: what is measured need not be allowed in a closed one."""


def pick_create(module: Any) -> Create:
    """Return ``create_for_timing``, which needs no trained weights, or else ``create``."""
    create: Create = getattr(module, "create_for_timing", None) or find_create(module)
    return create


def make_task(
    config: RunConfig, ranks: "Ranks", source: Any = None,
    *, is_warm: bool = True, has_data: bool = True,
) -> Any:  # fmt: skip
    """Create a task, build and warm it up, and open its data.

    ``source`` is a workload, a module with one, or what creates a task; by default it is the
    benchmark's own.
    """
    definition = config.definition
    source = source or registry.import_task(definition, config.framework)
    task = find_create(source)(config, ranks)
    task.build()
    if is_warm and definition.generation:
        task.warm_up(definition.generation.warm_up_images)
    elif is_warm:
        task.warm_up()
    if has_data:
        task.open_data()
    return task


def find_loss(task: Any) -> Callable[..., Any]:
    """Return what computes a loss from inputs and targets: of a trainer, or of a task itself."""
    loss: Callable[..., Any] = getattr(task, "compute_loss", None) or task.compiled_loss
    return loss


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


@dataclass(frozen=True)
class Sides:
    """Two ways to do the same work: a baseline by its name, and the reference.

    Where they are ``timed``, both return the seconds that count; else their whole time does.
    """

    what: str
    name: str
    baseline: Callable[[], Any]
    reference: Callable[[], Any]
    timed: bool = False


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

    def configure(self, *settings: str, seed: int = 1) -> RunConfig:
        """Return the configuration of ``--set`` with further settings, which may be open ones."""
        return configure_open(
            self.config.definition,
            overrides=[*self.overrides, *settings],
            data_root=self.config.data_root,
            seed=seed,
        )

    def make_variant(self, **settings: str) -> Any:
        """Return a task that computes as this one but for execution settings, ready to train."""
        execution = self.task.execution
        for setting, value in settings.items():
            execution = execution.with_setting(setting, value)
        config = replace(self.config, execution=execution)
        return make_task(config, self.ranks, is_warm=False)

    def time(self, what: str, measures: Mapping[str, Callable[[], float]]) -> tuple[Timing, ...]:
        """Call ``measures``, which return seconds, in turns, and show the rounds that are done."""
        with self.count(what, "rounds") as on_round:
            return time_in_turns(self.rounds, measures, on_round)

    def compare(self, sides: Sides) -> Comparison:
        """Compare the reference with a baseline in turns."""
        works = {sides.name: sides.baseline, "reference": sides.reference}
        timed = works if sides.timed else {name: partial(time_once, works[name]) for name in works}
        return Comparison(sides.what, *self.time(sides.what, timed))

    def measure(self, sides: Sides) -> Measurement:
        """Compare two sides; return the line of the table and the facts."""
        compared = self.compare(sides)
        return Measurement([describe_comparison(compared)], compared.as_json())

    def measure_all(
        self, all_sides: Mapping[str, Sides], describe: "Callable[[Comparison], Row] | None" = None
    ) -> Measurement:
        """Compare one pair of sides after the other; facts are by the names of the pairs."""
        compared = {name: self.compare(sides) for name, sides in all_sides.items()}
        rows = list(map(describe or describe_comparison, compared.values()))
        return Measurement(rows, {name: each.as_json() for name, each in compared.items()})


Measure = Callable[[Subject], Measurement]


def make_plain_task(subject: Subject) -> Any:
    """Create the task of the benchmark's ``plain.py``, ready, on as many threads."""
    module = registry.import_module(subject.config.definition.name, "plain")
    threads = str(subject.task.implementation()["threads_per_rank"])
    execution = replace(subject.config.execution, precision="fp32", compile="off", threads=threads)
    config = replace(subject.config, execution=execution)
    has_data = config.definition.kind == "train"
    return make_task(config, subject.ranks, module, has_data=has_data)


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
