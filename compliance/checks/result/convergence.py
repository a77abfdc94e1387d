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
from cepheid.compliance.read.summary import measure_crossing
from cepheid.compliance.score import convergence
from cepheid.compliance.score.convergence import Convergence
from cepheid.compliance.score.levels import count_missed_allowed
from cepheid.rules import rcp
from cepheid.rules.definition import Definition


@rule("T21", Needs.RESULT, kinds=("train",))
def check_convergence(
    result: ResultLogs, definition: Definition, place: Place
) -> Iterator[Finding]:
    """Check that the runs do not cross their targets implausibly early (T21)."""
    points = rcp.load(definition.name, definition.scale, place.round)
    comparison = compare_convergence(result, definition, place, points)
    if comparison is None or comparison.verdict == "equal":
        return
    scale, size = definition.scale, comparison.batch_size
    measure = f"`cepheid rcp {definition.name} --scale {scale} --batch-size {size}`"
    if comparison.verdict == "not measured":
        is_stale = points is not None and not points.belongs_to(definition)
        yield breach(
            result, None, "T21.not_measured", case="stale" if is_stale else "", measure=measure
        )
    elif comparison.verdict == "missing point":
        assert points is not None
        sizes = [point.batch_size for point in points.points if point.is_usable]
        yield breach(
            result, None, "T21.missing_point", smallest=min(sizes), largest=max(sizes),
            batch_size=size, measure=measure,
        )  # fmt: skip
    elif comparison.expected is not None:
        least, greatest = comparison.expected.find_limits(comparison.runs)
        code = "T21.too_fast" if comparison.verdict == "early" else "T21.late"
        yield breach(
            result, None, code, batch_size=size, mean=comparison.expected.mean,
            least=math.ceil(least), greatest=math.floor(greatest), samples=comparison.samples,
            factor=f"{comparison.factor:.3f}", measure=measure,
        )  # fmt: skip


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
    (size,), budget = sizes, float(definition.timing.max_samples)
    found = [measure_crossing(run, definition) for run in runs]
    if size is None or found.count(None) > count_missed_allowed(len(runs)):
        return None
    crossings = [budget if crossing is None else crossing for crossing in found]
    return convergence.compare(crossings, size, points, definition)
