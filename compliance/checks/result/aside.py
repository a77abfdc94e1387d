"""T15 and S14: the logs of interrupted runs, judged as if they counted.

Only its own log says why such a run does not count, and a text proves nothing. So a run that would
count but for what its log says of itself is a warning beside the score.
"""

from collections import Counter
from collections.abc import Iterator

from cepheid.compliance.finding import Finding, breach, encode_canonically, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import REASON_METADATA, is_integer
from cepheid.rules.evidence import find_end

INTERRUPTED_MAX = 2  # of one seed, without a word
CUT_OFF = "truncated"  # as a killed process leaves a line
NOT_FINITE = "not finite"  # in the reason of a run that ended by itself
OF_RESULT = tuple(
    f"submission_{part}" for part in ("round", "benchmark", "scale", "division", "org", "platform")
)
OF_TIMED_PART = (
    "run_start", "block_start", "block_stop", "generation_start", "generation_times",
    "eval_start", "eval_accuracy", "run_stop",
)  # fmt: skip


def check_set_aside(result: ResultLogs, definition: Definition) -> Iterator[Finding]:
    """Report logs that are called interrupted although their runs were completed or replaced.

    Warn of those that only their own text excuses.
    """
    times: Counter[object] = Counter()
    for run in result.interrupted:
        if run.first("seed") and any(map(run.first, OF_TIMED_PART)):
            times[_identify_seed(run)] += 1
        yield from _judge(run, result, definition, times[_identify_seed(run)])


def _judge(
    run: RunLog, result: ResultLogs, definition: Definition, times: int
) -> Iterator[Finding]:
    """Judge one log; ``times`` counts the interruptions of its seed so far."""
    seed, read = run.first("seed"), run.first("data_read")
    repeats = {_identify_seed(of): of for of in result.runs}
    repeat = repeats.get(_identify_seed(run)) if seed else None
    why, excuse = _explain_completion(run, repeat, definition), ""
    line = (run.first("run_stop") or run.events[-1]).line if run.events else None
    if not any(map(run.first, OF_TIMED_PART)):  # so that nothing was timed
        excuse = "no record is in it" if not run.events and holds_nothing(run) else ""
    elif why and read and read.value != run.value("data_digest"):  # as it says itself (T27)
        excuse = f"the data that it read ({why})"
    elif why:
        yield breach(run, line, "T15.set_aside", why=why)
    elif any(problem.lost and problem.kind != CUT_OFF for problem in run.problems):
        excuse = "records that cannot be read"
    elif run.text("code_digest") not in {of.text("code_digest") for of in result.runs}:
        excuse = "other code than that of the runs that count"
    elif seed is None:
        excuse = "no seed that a run could repeat"
    elif len(result.runs) >= definition.runs.required and repeat is None:
        yield breach(run, seed, "T15.other_seed", seed=format_value(seed.value))
    elif times > INTERRUPTED_MAX:
        excuse = f"an interruption, number {times} of seed {format_value(seed.value)}"
    if excuse:
        yield breach(run, line, "T15.excused", why=excuse)


def _identify_seed(run: RunLog) -> object:
    """Return something that is equal for seeds that are the same to a generator of 32 bits."""
    seed = run.value("seed")
    return seed % 2**32 if is_integer(seed) else encode_canonically(seed)


def _explain_completion(run: RunLog, repeat: RunLog | None, definition: Definition) -> str:
    """Return why a run counts as completed, whatever its last record is; else an empty text."""
    curve = run.quality_curve
    evaluated = curve[-1].samples if curve else 0
    stop = run.first("run_stop")
    after = f"after {evaluated:,} samples"
    if run.converged:
        return f"status {format_value(run.status)} {after}"
    end = find_end((point.metrics for point in curve), definition)
    if end is not None:
        return f"all targets hold on line {curve[end].line}, after {curve[end].samples:,} samples"
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


def check_belonging(aside: RunLog, counted: RunLog) -> Iterator[Finding]:
    """Check that the log of an interrupted run is one, and belongs to the result of another."""
    if not (aside.events or holds_nothing(aside)):
        yield breach(aside, None, "S14.no_log")
    for key in OF_RESULT:
        event, other = aside.first(key), counted.first(key)
        if event is not None and other is not None and event.value != other.value:
            name, expected = counted.path.name, format_value(other.value)
            yield breach(aside, event, "S14.other_result", other=name, expected=expected)
            return


def holds_nothing(log: RunLog) -> bool:
    """Return True for a log without a whole record because it is empty or was cut off."""
    if any(problem.kind == CUT_OFF for problem in log.problems):
        return True
    try:
        return log.path.stat().st_size == 0
    except OSError:
        return True  # T1 reports a file that cannot be read
