"""Seconds to the target with a slow worker: synchronous SGD waits for it, asynchronous does not.

Runs are recorded with those of ``staleness``, in ``benchmarks/<name>/staleness.json``.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.figures import OURS, REPORTED, draw_figure
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.trainings import Training, record_each
from cepheid.measure.studies.staleness import FILE
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import find_create
from cepheid.rules.errors import UserError
from cepheid.rules.evidence import Curve

RATE = "opt_base_learning_rate"
SYNCHRONOUS = 0  # workers of the runs that all numbers of workers share
ARRIVALS_LOOKED_AT = 10_000


@dataclass(frozen=True)
class Way:
    """One way to train: so many asynchronous workers, or synchronous ones, and the rate's factor.

    The last worker takes ``slow`` times as long as each other one.
    """

    workers: int
    rate: float
    slow: float

    @property
    def paces(self) -> Sequence[float]:
        """How long each worker takes for a gradient, in those of a fast one."""
        return (*[1.0] * (self.workers - 1), self.slow)

    def arrive(self) -> Iterator[tuple[int, float]]:
        """Yield the age and the arrival of each gradient."""
        from cepheid.reference.torch.parallel.stale import list_arrivals

        return list_arrivals(self.paces)

    def iterate_ages(self) -> Iterator[int]:
        """Yield the age of each gradient."""
        return (age for age, _ in self.arrive())

    def name(self, config: RunConfig) -> str:
        """Return the name of the variant, with the rate that is trained."""
        rate = f"{RATE}={config.hyperparameters[RATE]}"
        if self.workers == SYNCHRONOUS:
            return f"delay 0, {rate}"
        return f"{self.workers} workers, one {self.slow:g} times as slow, {rate}"


@dataclass(frozen=True)
class Outcome:
    """What a number of workers reaches in one of the two ways, with its best rate.

    ``updates`` is the mean of all seeds, None where no rate reaches the target with all of them.
    ``per_gradient`` is the time to the target, in gradients of a fast worker.
    """

    workers: int
    is_synchronous: bool
    rate: float | None
    updates: float | None
    oldest: int
    per_gradient: float | None
    seconds: float | None

    @property
    def way(self) -> str:
        """The name of the way."""
        return "synchronous" if self.is_synchronous else "asynchronous"


Runs = Mapping[tuple[Way, int], Training]


def list_arms(request: Request) -> Runs:
    """Return the runs by way and seed. Raises UserError for a benchmark without a base rate."""
    request.require_training(", so it has no gradients to delay")
    definition, asked = request.require_extras(), request.arguments
    if RATE not in definition.hyperparameters:
        raise UserError(f"{definition.name} has no {RATE}, which would be tuned for delays")
    from cepheid.reference.torch.parallel.stale import delay_gradients

    create = find_create(import_task(definition, "torch"))
    usual = float(definition.hyperparameters[RATE].default)
    arms = {}
    for seed in sorted(set(asked.seeds)):
        for workers in (SYNCHRONOUS, *asked.workers):
            for factor in sorted(set(asked.rates), reverse=True):
                way = Way(workers, factor, asked.slow)
                config = request.configure(seed, f"{RATE}={usual * factor:.6g}")
                source = create
                if workers:
                    oldest = max(islice(way.iterate_ages(), ARRIVALS_LOOKED_AT))
                    source = delay_gradients(create, oldest, way.iterate_ages)
                variant = way.name(config)
                arms[way, seed] = Training(variant, variant, config, source)
    return arms


def measure(request: Request, wanted: Runs) -> Measured:
    """Make the runs that are not recorded; return both ways for each number of workers."""
    definition, curves = request.definition, record_each(request, wanted, FILE)
    batch = next(iter(wanted.values())).config.global_batch_size
    samples = {key: curve.count_samples_to_target(definition) for key, curve in curves.items()}
    updates = {key: count / batch if count else None for key, count in samples.items()}
    pace = statistics.median(
        _time_update(curve, batch) for (way, _), curve in curves.items() if not way.workers
    )
    slow = request.arguments.slow
    outcomes = []
    for workers in request.arguments.workers:
        for of_runs in (SYNCHRONOUS, workers):
            outcome = find_best(updates, Way(of_runs, 1.0, slow), workers)
            seconds = pace * outcome.per_gradient if outcome.per_gradient else None
            outcomes.append(replace(outcome, seconds=seconds))
    title = f"{definition.name}, {definition.scale} scale: one worker {slow:g} times as slow"
    notes = [f"a gradient of a batch takes {1000 * pace:.1f} ms here, evaluations included"]
    is_fine = all(outcome.updates for outcome in outcomes)
    return Measured(outcomes, title, notes=notes, is_fine=is_fine)


def _time_update(curve: Curve, batch: int) -> float:
    return curve.seconds / (curve.evaluations[-1][0] / batch)


def find_best(updates: Mapping[tuple[Way, int], float | None], like: Way, workers: int) -> Outcome:
    """Return what so many workers reach in the way that is ``like`` this one but for its rate."""
    of_rates: dict[float, list[float | None]] = {}
    for (way, _), count in updates.items():
        if way.workers == like.workers:
            of_rates.setdefault(way.rate, []).append(count)
    reached = {
        rate: statistics.mean(filter(None, counts))
        for rate, counts in of_rates.items()
        if all(counts)
    }
    is_synchronous = like.workers == SYNCHRONOUS
    if not reached:
        return Outcome(workers, is_synchronous, None, None, 0, None, None)
    rate = min(reached, key=lambda each: reached[each])
    needed = reached[rate]
    if is_synchronous:  # a share of the batch each, and all wait
        return Outcome(workers, True, rate, needed, 0, needed * like.slow / workers, None)
    arrivals = [*islice(like.arrive(), max(1, round(needed)))]
    oldest = max(age for age, _ in arrivals)
    return Outcome(workers, False, rate, needed, oldest, arrivals[-1][1], None)


def draw_seconds(path: Path, request: Request, measured: Measured) -> None:
    """Draw the seconds to the target of both ways, by the number of workers."""
    counts = sorted({outcome.workers for outcome in measured.rows})
    with draw_figure(path, columns=1) as (figure, (axes,)):
        for shift, is_synchronous, colour in ((-0.2, True, REPORTED), (0.2, False, OURS)):
            shown = [row for row in measured.rows if row.is_synchronous == is_synchronous]
            places = [counts.index(row.workers) + shift for row in shown]
            seconds = [row.seconds or 0.0 for row in shown]
            axes.bar(places, seconds, width=0.35, color=colour, label=shown[0].way)
            texts = ["" if row.seconds else "missed" for row in shown]
            axes.bar_label(axes.containers[-1], texts)
        axes.set_xticks(range(len(counts)), list(map(str, counts)))
        axes.set(xlabel="workers, of which one is slow", ylabel="seconds to the target")
        axes.legend()
        figure.suptitle(measured.title)


def _compare(measured: Measured, row: Outcome) -> str | None:
    other = next(
        each for each in measured.rows if each.workers == row.workers and each.is_synchronous
    )
    if row.is_synchronous or not (row.per_gradient and other.per_gradient):
        return None
    return f"{other.per_gradient / row.per_gradient:.2f}"


def list_columns(_: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns; what no rate reaches is empty."""
    return (
        Column("workers", "workers"),
        Column("way", "way"),
        Column("best rate", "rate", "× {:g}"),
        Column("updates", "updates", "{:,.0f}"),
        Column("oldest gradient", "oldest", "{} updates"),
        Column("in gradients of a fast worker", "per_gradient", "{:,.0f}"),
        Column("seconds", "seconds", "{:,.1f}"),
        Column("times as fast as synchronous", partial(_compare, measured)),
    )


STUDY = Study(
    "stragglers", list_arms, measure, list_columns, draw_seconds, **read_command("stragglers")
)
