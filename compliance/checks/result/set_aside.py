"""T15: the logs of interrupted runs, judged as if they counted."""

from collections.abc import Iterator

from cepheid.compliance.finding import Finding, breach, encode_canonically, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import REASON_METADATA

NOT_FINITE = "not finite"  # in the reason of a run that ended by itself


def check_set_aside(result: ResultLogs, definition: Definition) -> Iterator[Finding]:
    """Report logs that are called interrupted although their runs were completed or replaced."""
    repeats = {encode_canonically(run.value("seed")): run for run in result.runs}
    is_whole = len(result.runs) >= definition.runs.required
    codes = {run.text("code_digest") for run in result.runs}
    for run in result.interrupted:
        if run.first("run_start") is None:
            continue  # nothing was timed
        seed = run.first("seed")
        repeat = repeats.get(encode_canonically(seed.value)) if seed else None
        why = "" if _has_read_other_data(run) else _explain_completion(run, repeat, definition)
        line = (run.first("run_stop") or run.events[-1]).line
        if why:
            yield breach(run, line, "T15.set_aside", why=why)
        elif is_whole and seed and repeat is None and run.text("code_digest") in codes:
            yield breach(run, seed, "T15.other_seed", seed=format_value(seed.value))


def _has_read_other_data(run: RunLog) -> bool:
    """Return True for a run that says itself that its data were damaged (rule T27)."""
    read = run.first("data_read")
    return read is not None and read.value != run.value("data_digest")


def _explain_completion(run: RunLog, repeat: RunLog | None, definition: Definition) -> str:
    """Return why a run counts as completed, whatever its last record is; else an empty text."""
    curve = run.quality_curve
    evaluated = curve[-1].samples if curve else 0
    stop = run.first("run_stop")
    after = f"after {evaluated:,} samples"
    if run.converged:
        return f"status {format_value(run.status)} {after}"
    wanted = {target.metric for target in definition.quality}
    for point in curve:
        if wanted <= point.metrics.keys() and definition.is_reached_by(point.metrics):
            return f"all targets hold on line {point.line}, after {point.samples:,} samples"
    budget = definition.timing.max_samples if definition.kind == "train" else 1
    if evaluated >= budget:
        return (
            f"status {format_value(run.status)} {after}" if stop else f"the whole budget, {after}"
        )
    reason = stop.metadata.get(REASON_METADATA) if stop else None
    if isinstance(reason, str) and NOT_FINITE in reason:
        return f"the reason {format_value(reason)} {after}"
    needed = repeat.samples_to_target if repeat and definition.kind == "train" else None
    if repeat is not None and needed is not None and evaluated >= needed:
        return (
            f"{evaluated:,} evaluated samples, where {repeat.path.name} with the same seed needed "
            f"{needed:,}"
        )
    return ""
