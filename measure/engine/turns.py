"""Time several pieces of code in turns, in one process, and what tasks and tables need for it.

Whatever else the machine does then slows all of them alike. Compare medians, and show the spread of
the ratios of each turn (``divide``). Whatever measurements do with a task as a whole goes through
``make_task``.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks import registry
from cepheid.measure.engine.noise import (
    REAL,
    SYNTHETIC,
    hold_weights,
    leave_out_files,
    open_noise,
    place_at_largest_step,
)
from cepheid.reference.run.config import RunConfig, configure
from cepheid.reference.run.generation import GenerationWorkload
from cepheid.reference.run.progress import OnProgress
from cepheid.reference.session.frameworks import find_create
from cepheid.reference.session.observer import OnCount
from cepheid.rules.definition import Definition

if TYPE_CHECKING:
    from cepheid.reference.machine.ranks import Ranks
    from cepheid.reference.torch.ranks.distributed import TorchRanks


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one piece of code, in seconds."""

    label: str
    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """The median of all measurements."""
        return statistics.median(self.seconds)

    @property
    def quartiles_seconds(self) -> tuple[float, float]:
        """The first and the third quartile: half of the measurements lie between them."""
        return find_middle_half(self.seconds)


@dataclass(frozen=True)
class Comparison:
    """Two timings of the same work, measured in turns."""

    what: str
    baseline: Timing
    reference: Timing

    @property
    def ratio(self) -> float:
        """The median time of the baseline over that of the reference."""
        return self.baseline.median_seconds / self.reference.median_seconds

    @property
    def overhead(self) -> float:
        """The median time that the reference takes beyond the baseline, over the baseline's."""
        return self.reference.median_seconds / self.baseline.median_seconds - 1

    def as_json(self) -> dict[str, Any]:
        """Return all measurements, the ratio and the overhead."""
        return {**asdict(self), "ratio_of_medians": self.ratio, "overhead": self.overhead}


def find_middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile."""
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def format_spread(middle: float, ends: tuple[float, float], form: str = ",.2f") -> str:
    """Return a value with the ends of its spread in brackets, such as ``1.50 (1.20 to 1.70)``."""
    return f"{middle:{form}} ({ends[0]:{form}} to {ends[1]:{form}})"


def divide(timing: Timing, baseline: Timing) -> tuple[float, float, float]:
    """Return the ratio of the median times, and the quartiles of the ratios of each turn.

    Both were timed in the same turns.
    """
    pairs = zip(timing.seconds, baseline.seconds, strict=True)
    low, high = find_middle_half([mine / other for mine, other in pairs])
    return timing.median_seconds / baseline.median_seconds, low, high


def time_in_turns(
    rounds: int,
    measures: Mapping[str, Callable[[], float]],
    on_round: OnCount = lambda done, total: None,
) -> tuple[Timing, ...]:
    """Call all ``measures``, each of which returns seconds, ``rounds`` times in turns.

    A round before the first one does not count. The order is reversed from round to round, so that
    none always follows the same other one. ``on_round`` is called with the rounds that are done,
    and all of them. Returns a timing for each measure, in their order.
    """
    seconds: dict[str, list[float]] = {label: [] for label in measures}
    for turn in range(rounds + 1):
        for label in list(measures)[:: -1 if turn % 2 else 1]:
            elapsed = measures[label]()
            if turn:
                seconds[label].append(elapsed)
        on_round(turn + 1, rounds + 1)
    return tuple(Timing(label, tuple(values)) for label, values in seconds.items())


def take_steps(task: Any, steps: int) -> None:
    """Take training steps and wait until the device has done them."""
    task.model.train()
    for _ in range(steps):
        task.step()
    task.synchronize()


def time_steps(task: Any, steps: int) -> float:
    """Return the mean seconds of a training step, which includes reading the data."""
    task.model.train()
    task.synchronize()
    return time_once(lambda: take_steps(task, steps)) / steps


def time_once(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def time_each(do: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Return the mean seconds that ``do`` takes for one of ``items``."""
    return time_once(lambda: [do(item) for item in items]) / len(items)


STEPS = 10  # of each turn
LONGEST_TURN_SECONDS = 3.0


def fit_steps(task: Any, most: int) -> int:
    """Return how many steps a turn takes, the same on all ranks: fewer where one takes long.

    One is taken here, after another one that does not count.
    """
    time_steps(task, 1)
    fitting = int(LONGEST_TURN_SECONDS / time_steps(task, 1))
    return task.ranks.broadcast(min(most, max(1, fitting)))


PLAIN = "plain eager float32"
MIB = 1024**2
Create = Callable[[RunConfig, Any], Any]

configure_open = partial(configure, division="open", seed=1)
"""Configures a run of the open division: what is measured need not be allowed in a closed one."""


def pick_create(module: Any) -> Create:
    """Return what makes the task of a module; where it generates, with untrained weights too."""
    workload = getattr(module, "WORKLOAD", None)
    if isinstance(workload, GenerationWorkload):
        module = workload.for_timing()
    return find_create(module)


def make_task(
    config: RunConfig, ranks: "Ranks", source: Any = None,
    *, is_warm: bool = True, inputs: str = REAL, at: int | None = None,
) -> Any:  # fmt: skip
    """Create a task, build and warm it up, and open its data: real ones, noise, or none.

    The first step on noise is the largest of the training, where its steps differ; or the one after
    ``at`` samples, and then no other is warmed up.

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
        if inputs == SYNTHETIC:
            leave_out_files(task)
        if at is not None:
            task.workload = replace(task.workload, noise_samples=lambda shape: (at,))
        task.warm_up()
    if inputs == REAL:
        task.open_data()
    elif inputs == SYNTHETIC:
        open_noise(task)
        hold_weights(task)
        place_at_largest_step(task)
    return task


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

    @classmethod
    def of_steps(cls, what: str, name: str, baseline: Any, reference: Any, steps: int) -> "Sides":
        """Return two tasks as sides that take so many training steps in each turn."""
        slow, fast = (partial(time_steps, task, steps) for task in (baseline, reference))
        return cls(what, name, slow, fast, timed=True)


def show_nothing(title: str, unit: str) -> AbstractContextManager[OnCount]:
    """Show no progress of work that is counted."""
    return nullcontext(lambda done, total: None)


@dataclass(frozen=True)
class Subject:
    """The task of the reference, ready to train, and how to measure it.

    ``overrides`` are the settings of ``--set``; ``rounds`` is the number of turns of each side;
    ``inputs`` says whether tasks train on real data or on noise;
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
    inputs: str = REAL

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
        return self.make_task(replace(self.config, execution=execution), is_warm=False)

    def make_task(self, config: RunConfig, source: Any = None, is_warm: bool = True) -> Any:
        """Return another task that is ready to train, on data as those of this one."""
        return make_task(config, self.ranks, source, is_warm=is_warm, inputs=self.inputs)

    def time(self, what: str, measures: Mapping[str, Callable[[], float]]) -> tuple[Timing, ...]:
        """Call ``measures``, which return seconds, in turns, and show the rounds that are done."""
        with self.count(what, "rounds") as on_round:
            return time_in_turns(self.rounds, measures, on_round)

    def time_tasks(self, what: str, tasks: Mapping[str, Any], steps: int) -> tuple[Timing, ...]:
        """Let tasks take so many training steps in turns."""
        return self.time(what, {name: partial(time_steps, tasks[name], steps) for name in tasks})

    def compare(self, sides: Sides) -> Comparison:
        """Compare the reference with a baseline in turns."""
        works = {sides.name: sides.baseline, "reference": sides.reference}
        timed = works if sides.timed else {name: partial(time_once, works[name]) for name in works}
        return Comparison(sides.what, *self.time(sides.what, timed))

    def measure(self, sides: Sides) -> Measurement:
        """Compare two sides; return the line of the table and the facts."""
        compared = self.compare(sides)
        return Measurement([describe_comparison(compared)], compared.as_json())

    def measure_all(self, all_sides: Mapping[str, Sides]) -> Measurement:
        """Compare one pair of sides after the other; facts are by the names of the pairs."""
        compared = {name: self.compare(sides) for name, sides in all_sides.items()}
        rows = list(map(describe_comparison, compared.values()))
        return Measurement(rows, {name: each.as_json() for name, each in compared.items()})


Measure = Callable[[Subject], Measurement]


def make_plain_task(subject: Subject) -> Any:
    """Create the task of the benchmark's ``plain.py``, ready, on as many threads."""
    module = registry.import_module(subject.config.definition.name, "plain")
    threads = str(subject.task.implementation()["threads_per_rank"])
    execution = replace(subject.config.execution, precision="fp32", compile="off", threads=threads)
    return subject.make_task(replace(subject.config, execution=execution), module)


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
