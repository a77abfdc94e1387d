"""T6 to T8 and T11: what happens before, within and at the end of the timed region."""

from collections.abc import Iterator
from itertools import zip_longest

from cepheid.compliance.checks.definitions import read_batch_size
from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.checks.time.intervals import measure_ms
from cepheid.compliance.finding import Finding, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Block, Definition
from cepheid.rules.events import REASON_METADATA, STATUS_ABORTED
from cepheid.rules.hyperparameters import EVAL_OFFSET

IDLE_MINUTES_MAX = 2.0  # between the initialisation and what stands next to it


@rule("T6", Needs.TIMELINE)
def check_initialisation(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that caches are cleared and that initialisation ends in time (T6)."""
    cleared = run.first("cache_clear")
    if cleared is not None and cleared.value is not True:
        yield make_finding(
            run.path,
            cleared.line,
            "T6.caches",
            "the data files were not dropped from the file caches",
            expected="true",
            got=format_value(cleared.value),
            hint="drop them before init_start, for example with posix_fadvise(DONTNEED), "
            "and log cache_clear with the value true",
        )
    start, stop = run.all("init_start")[0], run.all("init_stop")[0]
    minutes = measure_ms(start, stop) / 60_000
    if minutes > definition.timing.init_minutes_max:
        yield make_finding(
            run.path,
            stop.line,
            "T6.too_long",
            "initialisation took too long",
            expected=f"at most {definition.timing.init_minutes_max:g} minutes",
            got=f"{minutes:.1f} minutes since line {start.line}",
            hint="compile less, or keep the compiled program: a user waits for it",
        )
    waits = [(stop, run.all("run_start")[0])]
    if cleared is not None:
        waits.insert(0, (cleared, start))
    for before, after in waits:
        minutes = measure_ms(before, after) / 60_000
        if minutes > IDLE_MINUTES_MAX:
            yield make_finding(
                run.path,
                after.line,
                "T6.idle",
                f"{minutes:.1f} minutes passed between {before.key} and {after.key}",
                expected=f"at most {IDLE_MINUTES_MAX:g} minutes: nothing happens there",
                got=f"{minutes:.1f} minutes since line {before.line}",
                hint="do everything that is done before the clock between init_start and "
                "init_stop, and drop the caches just before it",
            )


@rule("T7", Needs.RECORDS)
def check_timed_region(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that the clock is stopped, and later than it was started (T7)."""
    started, stopped = run.first("run_start"), run.first("run_stop")
    if started and stopped and run.seconds is not None and started.line < stopped.line:
        is_short = run.seconds < 0 or (run.seconds == 0 and run.converged)
        if is_short:  # a run that failed at once may stop within the same millisecond
            yield make_finding(
                run.path,
                stopped.line,
                "T7.no_time",
                "the run took no time",
                expected=f"run_stop later than run_start on line {started.line}",
                got=f"{run.seconds:.3f} seconds",
                hint="write each record when it happens, with the wall clock of that moment",
            )
    if started and run.is_complete and not stopped:
        last = run.events[-1]
        yield make_finding(
            run.path,
            last.line,
            "T7.no_run_stop",
            "the log ends without run_stop",
            expected="exactly one run_stop, also when the run fails or is interrupted",
            got=f"{format_value(last.key)} as the last record",
            hint="the run was killed or is still running: run it again, "
            "and keep this log as interrupted_0.txt; `cepheid run` does both",
        )


@rule("T8", Needs.TIMELINE, kinds=("train",))
def check_cadence(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that blocks end, and evaluations happen, where the schedule says (T8)."""
    batch = read_batch_size(run)
    if batch is None:
        return
    offset = 0
    if EVAL_OFFSET in definition.hyperparameters and (declared := run.first(EVAL_OFFSET)):
        problem = definition.hyperparameters[EVAL_OFFSET].find_problem(declared.value)
        if problem:
            yield make_finding(
                run.path,
                declared.line,
                "T8.offset",
                f"{EVAL_OFFSET} {problem}",
                expected=f"an {EVAL_OFFSET} that the definition allows, in both divisions",
                got=format_value(declared.value),
                hint="choose another one and make all runs of the result again",
            )
            return
        offset = declared.value
    done, expected_block = 0, definition.schedule(batch, offset)
    for started, ended in zip_longest(run.all("block_start"), run.all("block_stop")):
        block = next(expected_block, None)
        if block is None:
            return  # T11 reports training past the budget
        if (started.metadata["block_num"], started.metadata["samples_count"]) != (
            block.number,
            block.first_sample,
        ):
            yield _report_off_schedule(run, started.line, "block_start", block, started.metadata)
            return
        if ended is None:
            return
        samples = ended.metadata["samples_count"]
        if samples % batch or samples <= done:
            return  # T10 reports a count that whole batches cannot reach
        if samples > block.samples and samples > _find_last_sample(definition, batch):
            return  # T11 reports it
        if samples != block.samples:
            late = samples > block.samples
            yield make_finding(
                run.path,
                ended.line,
                "T8.late" if late else "T8.early",
                f"evaluation at {samples:,} samples is {'late' if late else 'early'}",
                expected=f"an evaluation after every {definition.timing.eval_every_samples:,} "
                f"samples, here after {block.samples:,}",
                got=f"none between {done:,} and {samples:,}" if late else f"one after {samples:,}",
                hint="evaluate after each block: it ends with the first whole batch of "
                f"{batch:,} that completes the next multiple of eval_every_samples"
                + (f", counted from {offset} epochs on" if offset else ""),
            )
            return
        if ended.metadata["block_num"] != block.number:
            yield _report_off_schedule(run, ended.line, "block_stop", block, ended.metadata)
            return
        done = samples
    yield from _check_evaluation_counts(run)


def _report_off_schedule(
    run: RunLog, line: int, key: str, block: Block, metadata: object
) -> Finding:
    assert isinstance(metadata, dict)
    samples = block.first_sample if key == "block_start" else block.samples
    return make_finding(
        run.path,
        line,
        "T8.block_count",
        f"{key} has wrong counts",
        expected=f"block_num {block.number} and samples_count {samples:,}",
        got=f"{format_value(metadata['block_num'])} and {format_value(metadata['samples_count'])}",
        hint="samples_count counts the training samples since run_start",
    )


def _check_evaluation_counts(run: RunLog) -> Iterator[Finding]:
    """Check that an evaluation names the samples of the block before it."""
    samples, counted_on = 0, run.all("run_start")[0].line
    for event in run.events:
        if event.key == "block_stop":
            samples, counted_on = event.metadata["samples_count"], event.line
        elif event.key in ("eval_start", "eval_accuracy", "eval_stop"):
            logged = event.metadata["samples_count"]
            if logged != samples:
                yield make_finding(
                    run.path,
                    event.line,
                    "T8.evaluation_count",
                    f"samples_count of {event.key} is not that of its block",
                    expected=f"{samples:,}, as on line {counted_on}",
                    got=format_value(logged),
                    hint="samples_count counts the training samples since run_start; "
                    "nothing is trained between block_stop and the next block_start",
                )
                return


def _format_metadata(event: Event, name: str) -> str:
    return format_value(event.metadata[name]) if name in event.metadata else "nothing"


def _find_last_sample(definition: Definition, batch: int) -> int:
    """Return where the budget ends: max_samples, completed to a whole batch."""
    return -(-definition.timing.max_samples // batch) * batch


@rule("T11", Needs.TIMELINE, kinds=("train",))
def check_budget(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that training ends with the budget, or earlier with a reason (T11)."""
    stop = run.all("run_stop")[0]
    reason = stop.metadata.get(REASON_METADATA)
    gave_up = run.status == STATUS_ABORTED and run.samples_trained < definition.timing.max_samples
    if gave_up and not (isinstance(reason, str) and reason.strip()):
        yield make_finding(
            run.path,
            stop.line,
            "T11.no_reason",
            "the run was aborted before its budget was spent, and does not say why",
            expected=f"metadata.reason, a text, or {definition.timing.max_samples:,} samples",
            got=f"{_format_metadata(stop, REASON_METADATA)} after {run.samples_trained:,} samples",
            hint="log the error or whatever else ended the run as metadata.reason of run_stop",
        )
    batch = read_batch_size(run)
    if batch is None:
        return
    last = _find_last_sample(definition, batch)
    for event in run.events:
        starts_after = event.key == "block_start" and event.metadata["samples_count"] >= last
        ends_after = event.key == "block_stop" and event.metadata["samples_count"] > last
        if starts_after or ends_after:
            yield make_finding(
                run.path,
                event.line,
                "T11.past_budget",
                "the run was trained past its budget",
                expected=f"the end of training after {last:,} samples",
                got=f"{event.metadata['samples_count']:,} samples at {event.key}",
                hint="stop as aborted when the budget is spent and the targets do not hold",
            )
            return
