"""T21: a closed result does not converge implausibly fast."""

import math
from collections.abc import Iterator

from cepheid.compliance.checks.definitions import find_division, has_digest_of, read_batch_size
from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.logs import ResultLogs
from cepheid.compliance.score import convergence
from cepheid.compliance.score.convergence import Convergence
from cepheid.rules import rcp
from cepheid.rules.definition import Definition


@rule("T21", Needs.RESULT, kinds=("train",))
def check_convergence(
    result: ResultLogs, definition: Definition, place: Place
) -> Iterator[Finding]:
    """Check that the mean of samples to target is not implausibly small (T21)."""
    points = rcp.load(definition.name, definition.scale)
    comparison = compare_convergence(result, definition, place, points)
    if comparison is None or comparison.verdict == "pass":
        return
    measure = (
        f"`cepheid rcp {definition.name} --scale {definition.scale} "
        f"--batch-size {comparison.batch_size}`"
    )
    if comparison.verdict == "not measured":
        is_stale = points is not None and not points.belongs_to(definition)
        yield make_finding(
            result.path,
            None,
            "T21.not_measured",
            "convergence was not compared: there are no reference convergence points"
            + (" for this version of the definition" if is_stale else ""),
            hint=f"{measure} measures the reference at this batch size",
            severity="note",
        )
    elif comparison.verdict == "missing point":
        assert points is not None
        yield make_finding(
            result.path,
            None,
            "T21.missing_point",
            "convergence was compared with a smaller batch size only, which proves little",
            expected=f"at most {max(p.batch_size for p in points.points if p.is_usable):,}",
            got=f"{comparison.batch_size:,}",
            hint=f"{measure} measures the missing point; hand it in with the result",
            severity="note",
        )
    elif comparison.expected is not None:
        yield make_finding(
            result.path,
            None,
            "T21.too_fast",
            f"implausibly few samples to target at batch size {comparison.batch_size:,}",
            expected=f"a mean of at least {math.ceil(comparison.expected.least):,}; "
            f"the reference needs {comparison.expected.mean:,.0f}"
            + _name_nearest(comparison.expected.batch_size, comparison.batch_size),
            got=f"{comparison.samples:,.0f}"
            + (f", factor {comparison.factor:.2f}" if comparison.factor else ""),
            hint="look for what is not the definition's: data, augmentation, optimizer, "
            "evaluation; where only the hyperparameters are better, measure the reference with "
            f"them: {measure} with --set, and hand in its rcp.json",
        )


def _name_nearest(measured: int, batch_size: int) -> str:
    return "" if measured == batch_size else f" at the nearest measured batch size, {measured:,}"


def compare_convergence(
    result: ResultLogs, definition: Definition, place: Place, points: rcp.ReferencePoints | None
) -> Convergence | None:
    """Compare a result with the reference; return None where T21 does not apply.

    T21 does not apply to the open division, nor where other rules report runs that are missing,
    did not converge, or do not say what they are.
    """
    runs, sizes = result.runs, {read_batch_size(run) for run in result.runs}
    if len(runs) != definition.runs.required or find_division(runs[0], place) != "closed":
        return None
    if len(sizes) != 1 or not all(has_digest_of(run, definition) for run in runs):
        return None
    (size,) = sizes
    samples = [run.samples_to_target or math.inf for run in runs]
    if size is None or samples.count(math.inf) > definition.runs.drop_slowest:
        return None
    return convergence.compare(samples, size, points, definition)
