"""The energy of a run, where sensors were read: its power log, and what its report says."""

from typing import TYPE_CHECKING, Any

from reference.machine import energy
from reference.run import logfile
from rules.host import atomic_write

if TYPE_CHECKING:
    from rich.console import Console

    from reference.run.results import ResultFolder


def keep(
    meter: energy.Meter, folder: "ResultFolder", index: int, console: "Console"
) -> dict[str, Any]:
    """Write ``power_<k>.csv`` (rule T23) and return what the report says; the run counts without.

    A result has a power log for each of its runs or for none, so none is written beside runs that
    were made without sensors.
    """
    trace = meter.trace
    start_ms, stop_ms = (_moment_ms(folder, index, key) for key in ("run_start", "run_stop"))
    told = energy.report_energy(meter.sensors, trace, start_ms, stop_ms)
    others = [run for run in folder.present() if run != index]
    without = [run for run in others if not folder.power_log(run).exists()]
    if trace is None:
        if meter.failure:
            console.print(f"run {index}: no energy: {meter.failure}", markup=False)
        return told
    console.print(f"run {index}: {told['joules']:,.0f} J, {told['mean_watts']:.0f} W", markup=False)
    if without:
        console.print(f"run {index}: no power log, as run {without[0]} has none (rule T23)")
        return told
    path = folder.power_log(index)
    try:
        atomic_write(path, trace.format_power_log())
    except OSError as error:
        console.print(f"run {index}: no power log: {error}; the run counts", markup=False)
    return told


def _moment_ms(folder: "ResultFolder", index: int, key: str) -> float:
    record = logfile.last_record(folder.log(index), key)
    assert record is not None
    return float(record["metadata"]["monotonic_ms"])
