"""T14: no run computes more in a second than the described machine can."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Described
from cepheid.compliance.finding import Finding, breach
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
    yield breach(
        run,
        event,
        "T14.above_peak",
        case="" if peak.basis == "datasheet" else "measured",
        peak_tflops=peak.tflops,
        precision=peak.precision,
        basis=peak.basis,
        tflops=found.share * peak.tflops,
        samples_per_second=pace.samples_per_second,
        flops_per_sample=definition.flops_per_sample or 0,
    )
