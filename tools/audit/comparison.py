"""Compare a repeated run with the logged one: quality, number of evaluations, times."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.metrics import METRICS

TOLERANCE = 0.1
SCATTERS = 2  # the tolerance in units of the scatter between the converged runs of the result
TOLERANCE_MAX = 0.5  # a metric that would need more is not judged
FASTER_MAX = 1.5  # the largest honest ratio seen between two runs of one result was 1.45
SECONDS_MIN = 5.0  # shorter runs say little about speed
SAME_MACHINE = (
    "nodes",
    "processor",
    "processor_cores_per_node",
    "accelerators_per_node",
    "accelerator",
)


@dataclass(frozen=True)
class Comparison:
    """One quality metric at one evaluation, in the log and in the repeated run."""

    samples: int
    metric: str
    logged: float
    repeated: float
    share: float  # the difference divided by the larger of logged value and target

    def __str__(self) -> str:
        values = f"{self.metric} {self.logged:.4f}, repeated {self.repeated:.4f}"
        return f"{self.samples:>11,} samples  {values}  ({self.share:.1%})"


@dataclass(frozen=True)
class Verdict:
    """One thing that was compared. ``agrees`` is None where nothing could be judged, and why."""

    what: str
    agrees: bool | None
    found: str

    @property
    def word(self) -> str:
        """The verdict in one word or two."""
        return {True: "agrees", False: "DIFFERS", None: "not judged"}[self.agrees]


def compare(logged: RunLog, again: RunLog, chosen: Definition) -> list[Comparison]:
    """Compare each quality metric at each evaluation that both runs have."""
    other = {point.samples: point.metrics for point in again.quality_curve}
    comparisons = []
    for point in logged.quality_curve:
        for target in chosen.quality:
            before = point.metrics.get(target.metric)
            now = other.get(point.samples, {}).get(target.metric)
            if before is not None and now is not None:
                scale = max(abs(before), abs(target.target)) or 1.0
                share = abs(now - before) / scale
                comparisons.append(Comparison(point.samples, target.metric, before, now, share))
    return comparisons


def judge_values(
    logged: RunLog, again: RunLog, chosen: Definition, tolerance: float
) -> Iterator[Verdict]:
    """Judge every value at every evaluation, for the machine of the log."""
    yield _judge_lengths(logged, again, 1)
    pairs = compare(logged, again, chosen)
    for target in chosen.quality:
        shares = [pair.share for pair in pairs if pair.metric == target.metric]
        worst = max(shares, default=0.0)
        many = sum(share > tolerance for share in shares)
        differing = f"{many} of {len(shares)} values differ by more than {tolerance:.1%}"
        agreed = f"all {len(shares)} values within {worst:.1%}, the tolerance is {tolerance:.1%}"
        agrees = bool(shares) and not many
        yield Verdict(target.metric, agrees, agreed if agrees else differing)


def judge_curves(
    logged: RunLog, again: RunLog, converged: Sequence[RunLog], chosen: Definition
) -> Iterator[Verdict]:
    """Judge each curve as a whole, for any machine.

    The tolerance follows from how much the converged runs of the result scatter, within limits:
    neither an aborted run nor a planted one may make everything agree.
    """
    lengths = [len(run.quality_curve) for run in converged] or [len(logged.quality_curve)]
    most = max(1, len(logged.quality_curve) // 2)
    yield _judge_lengths(logged, again, min(most, 1 + max(lengths) - min(lengths)))
    for metric, share in measure_differences(logged, again, chosen).items():
        pairs = combinations(converged, 2)
        scatter = max(
            (measure_differences(*pair, chosen)[metric] or 0.0 for pair in pairs), default=0.0
        )
        tolerance = max(TOLERANCE, SCATTERS * scatter)
        if share is None:
            yield Verdict(metric, False, "no common evaluation")
        elif tolerance > TOLERANCE_MAX:
            result = f"differs by {share:.1%}, but the runs of the result differ by {scatter:.1%}"
            yield Verdict(metric, None, result)
        else:
            result = (
                f"differs by {share:.1%} in the second half (median), tolerance {tolerance:.0%}"
            )
            yield Verdict(metric, share <= tolerance, result)


def _judge_lengths(logged: RunLog, again: RunLog, allowed: int) -> Verdict:
    before, now = len(logged.quality_curve), len(again.quality_curve)
    lengths = f"{before} in the log, {now} in the repeated run, {allowed} more or fewer allowed"
    return Verdict("evaluations", abs(before - now) <= allowed, lengths)


def measure_differences(
    logged: RunLog, again: RunLog, chosen: Definition
) -> dict[str, float | None]:
    """Return for each quality metric the median difference over the second half of the logged run.

    It is None where the two runs have no evaluation in common there.
    """
    half = logged.quality_curve[-1].samples / 2 if logged.quality_curve else 0.0
    late = [pair for pair in compare(logged, again, chosen) if pair.samples >= half]
    shares = {
        target.metric: [pair.share for pair in late if pair.metric == target.metric]
        for target in chosen.quality
    }
    return {
        metric: statistics.median(values) if values else None for metric, values in shares.items()
    }


def describe_other_machine(described: Mapping[str, object], here: Mapping[str, object]) -> str:
    """Return how this machine differs from the described one, "" where it is the same."""
    if not described:
        return "the system of the log is not described"
    different = [key for key in SAME_MACHINE if described.get(key) != here.get(key)]
    facts = [f"{key} {described.get(key)}, here {here.get(key)}" for key in different]
    return f"another machine: {'; '.join(facts)}" if facts else ""


def describe_other_arithmetic(
    logged: RunLog, overrides: Sequence[str], *, has_bfloat16: bool
) -> str:
    """Return how the repeated run computes otherwise than the logged one, "" where it does not.

    The name of a processor may hide which instructions it has: a virtual machine's often does.
    """
    if overrides:
        return f"repeated with {', '.join(overrides)}"
    how = logged.implementation
    if (how.get("device"), how.get("precision")) != ("cpu", "bfloat16") or has_bfloat16:
        return ""
    return "this processor has no instructions for bfloat16, so that it emulates them"


def judge_times(logged: RunLog, again: RunLog, otherwise: str) -> Iterator[Verdict]:
    """Judge what the score is made of: was the log too fast? A slower log is no offence.

    ``otherwise`` says why the times cannot be compared: another machine, or other arithmetic. It is
    empty where they can.
    """
    seconds = logged.seconds or 0.0
    for what, before, now in _measure_costs(logged, again):
        times = f"{before:.4g} s in the log, {now:.4g} s repeated (x {now / before:.2f})"
        if otherwise:
            yield Verdict(what, None, f"{times}; {otherwise}")
        elif seconds < SECONDS_MIN:
            yield Verdict(what, None, f"{times}; the run took only {seconds:.1f} s")
        else:
            agrees = now / before <= FASTER_MAX
            yield Verdict(what, agrees, f"{times}, at most x {FASTER_MAX:g} is allowed")


def _measure_costs(logged: RunLog, again: RunLog) -> Iterator[tuple[str, float, float]]:
    """Yield what the runs took, in seconds: per sample, or by each metric of generation."""
    if logged.generation and again.generation:
        for metric in METRICS:
            before, now = logged.generation[metric.name], again.generation[metric.name]
            if metric.better == "higher":
                yield f"time per image ({metric.name})", 1 / before, 1 / now
            else:
                yield metric.name, before / 1000, now / 1000
        return
    # 0 where a log does not have both
    before, now = (
        (run.seconds or 0.0) / run.quality_curve[-1].samples if run.quality_curve else 0.0
        for run in (logged, again)
    )
    if before > 0 and now > 0:
        yield "time per sample", before, now
