"""T21: a closed result does not converge implausibly fast."""

import math
from collections.abc import Iterator

from cepheid.compliance.checks.registry import (
    Needs,
    Place,
    find_division,
    has_digest_of,
    read_batch_size,
    rule,
)
from cepheid.compliance.finding import Finding, breach
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
    points = rcp.load(definition.name, definition.scale, place.round)
    comparison = compare_convergence(result, definition, place, points)
    if comparison is None or comparison.verdict == "pass":
        return
    measure = (
        f"`cepheid rcp {definition.name} --scale {definition.scale} "
        f"--batch-size {comparison.batch_size}`"
    )
    if comparison.verdict == "not measured":
        is_stale = points is not None and not points.belongs_to(definition)
        yield breach(
            result, None, "T21.not_measured", case="stale" if is_stale else "", measure=measure
        )
    elif comparison.verdict == "missing point":
        assert points is not None
        yield breach(
            result,
            None,
            "T21.missing_point",
            largest=max(p.batch_size for p in points.points if p.is_usable),
            batch_size=comparison.batch_size,
            measure=measure,
        )
    elif comparison.expected is not None:
        yield breach(
            result,
            None,
            "T21.too_fast",
            batch_size=comparison.batch_size,
            least=math.ceil(comparison.expected.least),
            mean=comparison.expected.mean,
            nearest=_name_nearest(comparison.expected.batch_size, comparison.batch_size),
            samples=comparison.samples,
            factor=f", factor {comparison.factor:.2f}" if comparison.factor else "",
            measure=measure,
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
