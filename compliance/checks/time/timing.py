"""T6 to T8 and T11: what happens before, within and at the end of the timed region."""

from collections.abc import Iterator
from itertools import zip_longest

from cepheid.compliance.checks.registry import Needs, Place, read_batch_size, rule
from cepheid.compliance.checks.time.clock import format_metadata
from cepheid.compliance.checks.time.pace import measure_ms
from cepheid.compliance.finding import Finding, breach, format_value
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
        yield breach(run, cleared, "T6.caches")
    start, stop = run.all("init_start")[0], run.all("init_stop")[0]
    minutes = measure_ms(start, stop) / 60_000
    if minutes > definition.timing.init_minutes_max:
        yield breach(
            run, stop, "T6.too_long", most=definition.timing.init_minutes_max, minutes=minutes,
            line=start.line,
        )  # fmt: skip
    waits = [(stop, run.all("run_start")[0])]
    if cleared is not None:
        waits.insert(0, (cleared, start))
    for before, after in waits:
        minutes = measure_ms(before, after) / 60_000
        if minutes > IDLE_MINUTES_MAX:
            yield breach(
                run, after, "T6.idle", minutes=minutes, before=before.key, after=after.key,
                most=IDLE_MINUTES_MAX, line=before.line,
            )  # fmt: skip


@rule("T7", Needs.RECORDS)
def check_timed_region(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that the clock is stopped, and later than it was started (T7)."""
    started, stopped = run.first("run_start"), run.first("run_stop")
    if started and stopped and run.seconds is not None and started.line < stopped.line:
        is_short = run.seconds < 0 or (run.seconds == 0 and run.converged)
        if is_short:  # a run that failed at once may stop within the same millisecond
            yield breach(run, stopped, "T7.no_time", line=started.line, seconds=run.seconds)
    if started and run.is_complete and not stopped:
        last = run.events[-1]
        yield breach(run, last, "T7.no_run_stop", key=format_value(last.key))


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
            yield breach(run, declared, "T8.offset", problem=problem)
            return
        offset = declared.value
    done, expected_block = 0, definition.schedule(batch, offset)
    for started, ended in zip_longest(run.all("block_start"), run.all("block_stop")):
        block = next(expected_block, None)
        if block is None:
            return  # T11 reports training past the budget
        logged = started.metadata["block_num"], started.metadata["samples_count"]
        if logged != (block.number, block.first_sample):
            yield _report_off_schedule(run, started, block, block.first_sample)
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
            yield breach(
                run, ended, "T8.late" if late else "T8.early", samples=samples,
                every=definition.timing.eval_every_samples, due=block.samples, done=done,
                batch=batch, counted=f", counted from {offset} epochs on" if offset else "",
            )  # fmt: skip
            return
        if ended.metadata["block_num"] != block.number:
            yield _report_off_schedule(run, ended, block, block.samples)
            return
        done = samples
    yield from _check_evaluation_counts(run)


def _report_off_schedule(run: RunLog, event: Event, block: Block, samples: int) -> Finding:
    return breach(
        run, event, "T8.block_count", number=block.number, samples=samples,
        logged_number=format_value(event.metadata["block_num"]),
        logged_samples=format_value(event.metadata["samples_count"]),
    )  # fmt: skip


def _check_evaluation_counts(run: RunLog) -> Iterator[Finding]:
    """Check that an evaluation names the samples of the block before it."""
    samples, counted_on = 0, run.all("run_start")[0].line
    for event in run.events:
        if event.key == "block_stop":
            samples, counted_on = event.metadata["samples_count"], event.line
        elif event.key in ("eval_start", "eval_accuracy", "eval_stop"):
            logged = event.metadata["samples_count"]
            if logged != samples:
                yield breach(
                    run, event, "T8.evaluation_count", samples=samples, line=counted_on,
                    logged=format_value(logged),
                )  # fmt: skip
                return


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
        yield breach(
            run, stop, "T11.no_reason", max_samples=definition.timing.max_samples,
            reason=format_metadata(stop, REASON_METADATA), samples=run.samples_trained,
        )  # fmt: skip
    batch = read_batch_size(run)
    if batch is None:
        return
    last = _find_last_sample(definition, batch)
    for event in run.events:
        starts_after = event.key == "block_start" and event.metadata["samples_count"] >= last
        ends_after = event.key == "block_stop" and event.metadata["samples_count"] > last
        if starts_after or ends_after:
            yield breach(
                run, event, "T11.past_budget", last=last, samples=event.metadata["samples_count"]
            )
            return
