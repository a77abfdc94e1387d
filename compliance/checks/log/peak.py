"""T14: no run computes more in a second than the described machine can."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Described, make_finding
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log.pace import measure_pace
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.devices import find_peak


def check_peak(run: RunLog, described: Described, definition: Definition) -> Iterator[Finding]:
    """Check that the pace of a closed run is below the peak of its system (T14).

    A measured peak may be too low, if the machine was busy; so this is a warning then.
    """
    pace = measure_pace(run)
    if pace is None or run.text("submission_division") != "closed":
        return
    found = pace.compute_share(definition, find_peak(described.system, pace.precision))
    if found is None or found.share <= 1:
        return
    event, peak = run.first("implementation"), found.peak
    yield make_finding(
        run.path,
        event.line if event else None,
        "T14.above_peak",
        "the run computed more in a second than the described system can",
        expected=f"at most {peak.tflops:,.4g} TFLOP/s in {peak.precision} ({peak.basis})",
        got=f"{found.share * peak.tflops:,.4g} TFLOP/s: {pace.samples_per_second:,.4g} samples a "
        f"second of {definition.flops_per_sample:,} operations each",
        hint="describe the system that ran, with the precision that it computed in; measure its "
        "peak again on a quiet machine (cepheid describe-system)",
        severity="error" if peak.basis == "datasheet" else "warning",
    )
