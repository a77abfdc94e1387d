"""Make a recorded run of each benchmark again: does its seed still give what was recorded?"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cepheid.measure.engine import trainings
from cepheid.measure.engine.study import Column, Measured, Request
from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.reference.run.config import configure
from cepheid.rules import definition as definitions
from cepheid.rules import evidence, extras
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve

CONFIDENCE = 0.999  # of the interval in which one more run lies: 12 benchmarks, every night


@dataclass(frozen=True)
class Repeated:
    """A run that was made again. ``expected`` is the interval in which it should cross or score."""

    benchmark: str
    seed: int
    recorded: float | None
    now: float | None
    expected: tuple[float, float]
    verdict: str
    seconds: float

    @property
    def is_fine(self) -> bool:
        """True unless the run differs from what was recorded."""
        return self.verdict != "differs"


def repeat_all(request: Request, names: Sequence[str]) -> Measured:
    """Repeat one seed of each benchmark at mini scale that has evidence for its definition."""
    rows, notes = [], []
    for name in names:
        one = definitions.load(name, "mini")
        extras.require_for_runs(one.extras)
        recorded = evidence.load(one)
        curves = recorded.correct if recorded else ()
        seeds = sorted(curve.seed for curve in curves)
        day = datetime.now(UTC).toordinal()
        seed = request.arguments.seed or (seeds[day % len(seeds)] if seeds else 0)
        if seed not in seeds:
            notes.append(f"{name}: not repeated, because no seed {seed} is recorded")
            continue
        config = configure(one, data_root=request.data_root, seed=seed)
        wanted = [Training(name, CORRECT, config)]
        made = trainings.train_all(one, wanted, request.data_root, request.observer)
        rows += [compare(one, curves, curve) for _, curve, _ in made]
    is_fine = all(row.is_fine for row in rows)
    return Measured(rows, "a recorded seed made again", notes=notes, is_fine=is_fine)


def compare(one: Definition, curves: Sequence[Curve], now: Curve) -> Repeated:
    """Compare a run with the recorded one of its seed, and with all recorded seeds.

    Bits differ between processors and versions of PyTorch, and rounding alone can move a crossing.
    So a run that is not the same as the recorded one must lie where one more seed would.
    """
    before = next(curve for curve in curves if curve.seed == now.seed)
    values = [value for curve in curves if (value := _measure(one, curve)) is not None]
    interval = _expect(values)
    mine = _measure(one, now)
    if before.evaluations == now.evaluations:
        verdict = "same"
    else:
        is_within = mine is not None and interval[0] <= mine <= interval[1]
        verdict = "another course, as of another seed" if is_within else "differs"
    return Repeated(
        one.name, now.seed, _measure(one, before), mine, interval, verdict, now.seconds
    )  # fmt: skip


def _measure(one: Definition, curve: Curve) -> float | None:
    """Return the crossing of a run that trains, the first metric of one that generates."""
    if one.kind == "train":
        return curve.find_crossing(one)
    return curve.evaluations[-1][1][one.quality[0].metric] if curve.evaluations else None


def _expect(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of one more value, by Student's t for logarithms of positive ones."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return -math.inf, math.inf
    logs = [math.log(value) for value in values]
    spread = statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    half = float(stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)) * spread
    middle = statistics.fmean(logs)
    return math.exp(middle - half), math.exp(middle + half)


COLUMNS = (
    Column("benchmark", "benchmark"),
    Column("seed", "seed"),
    Column("recorded", "recorded", "{:,.4g}"),
    Column("now", "now", "{:,.4g}"),
    Column("one more seed", lambda row: "{:,.4g} to {:,.4g}".format(*row.expected)),
    Column("verdict", "verdict"),
    Column("seconds", "seconds", "{:.0f}"),
)
