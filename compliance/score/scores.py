"""The numbers of a result: the score with its interval, and the time to train (rules T20, T26)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cepheid.compliance.read.summary import RunSummary
from cepheid.compliance.score.convergence import Convergence
from cepheid.compliance.score.kinds import GENERATION, MINUTES, SCORE, TRAINING, BenchmarkKind
from cepheid.compliance.score.levels import (
    CHARGED_SHARE,
    Level,
    average,
    count_missed_allowed,
    measure_score,
    measure_times,
)
from cepheid.compliance.score.trimmed import Estimate, estimate, trim
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.metrics import METRICS

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Score:
    """The numbers of a result: an estimate for each, by name.

    ``level`` is what it is compared by, and ``is_score`` False where it has a time but no score,
    for the reason ``why``. ``values`` are those of the runs in the unit of the main estimate, None
    for a run that missed its targets; ``counted`` are the places of those that it is a mean of.
    """

    kind: BenchmarkKind
    estimates: Mapping[str, Estimate]
    level: Level | None
    values: tuple[float | None, ...]
    counted: frozenset[int]
    is_score: bool = True
    why: str = ""

    @property
    def main(self) -> Estimate:
        """The estimate that orders the table: the score, or a time where there is no score."""
        return self.estimates.get(SCORE) or self.estimates[self.kind.ranked_by]

    @property
    def cost(self) -> float:
        """What results are ordered by, less is better: minutes, or seconds per image."""
        return self.kind.cost(self.main.mean)

    @property
    def basis(self) -> str:
        """What the interval is made of, as in ``5 runs in one sitting``; empty where unknown."""
        level = self.level
        if level is None or not level.sittings:
            return ""
        sittings = "one sitting" if level.sittings == 1 else f"{level.sittings} sittings"
        return f"{level.runs} runs in {sittings}"


def score_times(runs: Sequence[RunSummary], held: Runs, scaling: float = 1.0) -> Score:
    """Return the time to train of a result as its only number, as rounds of MLPerf have it.

    mlcommons multiplies it by ``scaling`` where a result converged faster than the reference.

    Raises ValueError where more runs did not converge than are dropped.
    """
    minutes = [scaling * run.minutes for run in runs]
    dropped = held.drop_fastest, held.drop_slowest
    estimates = {MINUTES: estimate(minutes, *dropped)}
    level, counted = measure_times(minutes, *dropped), frozenset(trim(minutes, *dropped))
    values = tuple(value if math.isfinite(value) else None for value in minutes)
    return Score(TRAINING, estimates, level, values, counted)


def score_training(
    runs: Sequence[RunSummary], definition: Definition, convergence: Convergence | None
) -> Score:
    """Return the time to train of a result of our own rounds, with its score if it has one.

    ``convergence`` is None where rule T21 does not apply. Raises ValueError where more runs did not
    converge than are dropped.
    """
    times = score_times(runs, definition.runs)
    why = _explain_missing_score(runs, convergence)
    seconds = [find_pace(run) for run in runs]
    known = [pace for pace in seconds if pace is not None]
    crossings = list_crossings(runs, definition)
    level = None
    if not why and convergence is not None and len(known) == len(runs):
        starts = [run.started_ms for run in runs]
        level = measure_score(known, convergence, crossings, starts)
    if level is None:
        why = why or "the logs do not tell what a score is made of"
        return replace(times, is_score=False, why=why)
    if level.is_charged:
        samples: Sequence[float] = crossings
    else:
        assert convergence is not None
        assert convergence.expected is not None
        samples = [convergence.expected.mean] * len(runs)
    values = [pace * count / 60 for pace, count in zip(known, samples, strict=True)]
    estimates = {**times.estimates, SCORE: level.estimate(CONFIDENCE + CHARGED_SHARE)}
    return Score(TRAINING, estimates, level, tuple(values), frozenset(range(len(runs))))


def _explain_missing_score(runs: Sequence[RunSummary], convergence: Convergence | None) -> str:
    """Say why a result has no score, only a time; nothing where it has one."""
    missed, allowed = sum(not run.converged for run in runs), count_missed_allowed(len(runs))
    if missed > allowed:
        return f"{missed} of {len(runs)} runs did not converge, and a score allows {allowed}"
    if convergence is None:
        return "there are no reference points for the open division"
    return {
        "not measured": "there are no reference points",
        "missing point": "there are no reference points at such a batch size",
    }.get(convergence.verdict, "")


def find_pace(run: RunSummary) -> float | None:
    """Return the seconds per sample of a run, evaluations included; None where it is not known."""
    if not run.seconds or run.seconds <= 0 or not run.trained:
        return None
    return run.seconds / run.trained


def list_crossings(runs: Sequence[RunSummary], definition: Definition) -> list[float]:
    """List the samples at which runs crossed their targets; the budget where they did not."""
    return [
        run.crossing if run.converged and run.crossing else float(definition.timing.max_samples)
        for run in runs
    ]


def score_generation(runs: Sequence[RunSummary]) -> Score | None:
    """Return the scores of a result that generates; None where a run missed its targets.

    Each is the geometric mean over the runs, with the interval of Student's t for the logarithms.
    A percentile that a run lacks has none.
    """
    if not runs or not all(run.generation for run in runs):
        return None
    names = [metric.name for metric in METRICS]
    whole = [name for name in names if all(run.generation.get(name, 0) > 0 for run in runs)]
    starts = [run.started_ms for run in runs]
    levels = {
        name: average([math.log(run.generation[name]) for run in runs], starts) for name in whole
    }
    main = levels[GENERATION.ranked_by]
    values = tuple(run.generation[GENERATION.ranked_by] for run in runs)
    estimates = {name: level.estimate(CONFIDENCE) for name, level in levels.items()}
    cost = replace(main, log_mean=-main.log_mean)
    return Score(GENERATION, estimates, cost, values, frozenset(range(len(runs))))
