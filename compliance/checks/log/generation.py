"""T24: what a run of generation has generated, and in what time."""

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import combinations, zip_longest

from cepheid.compliance.checks.registry import Needs, Place, find_division, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog, is_time, read_repetitions
from cepheid.rules.definition import Definition
from cepheid.rules.events import GENERATION_SECONDS, REASON_METADATA, STATUS_ABORTED, is_number

CLOCK_TOLERANCE_MS = 2.0  # of rounding, twice
UNTIMED_SHARE_MAX = 0.03  # of an interval, beside the repetitions; 2.3% was recorded
UNTIMED_MS = 20.0  # to write a record, also where other work takes a turn
REPETITIONS_MIN = 20  # fewer show no usual time
LONGEST_SHARE = 0.01  # the repetitions that the 99th percentile leaves out
LONGEST_TIME_SHARE_MAX = 0.25  # 0.06 was recorded
FASTER_MAX = 2.0  # per image, than in larger batches


@rule("T24", Needs.TIMELINE, kinds=("generate",))
def check_generation(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check what was generated, how often, and in what time (T24)."""
    findings = [*_check_counts(run, definition), *_check_times(run, definition)]
    yield from findings
    if not findings:
        yield from _check_growth(run)
        yield from _check_images(run, definition)
        yield from _check_projections(run, definition, place)


def _check_counts(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Report the first number of images that is not the definition's, in any of its events."""
    assert definition.generation is not None
    counts = definition.generation.counts
    stop = run.all("run_stop")[0]
    expected = f"{', '.join(f'{count:,}' for count in counts)} images at a time, in this order"
    for key in ("generation_start", "generation_times", "generation_stop"):
        for event, count in zip_longest(run.all(key), counts):
            if event is None:
                reason = stop.metadata.get(REASON_METADATA)
                if run.status == STATUS_ABORTED and isinstance(reason, str) and reason.strip():
                    break  # the run failed and gives the reason
                yield breach(
                    run, stop, "T24.missing", key=key, count=count, expected=expected,
                    without_reason=" without a reason" if run.status == STATUS_ABORTED else "",
                )  # fmt: skip
                return
            if event.metadata["images_count"] != count:
                got = format_value(event.metadata["images_count"])
                yield breach(run, event, "T24.images_count", expected=expected, images_count=got)
                return


def _check_times(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Check that all times are there and fit between generation_start and generation_stop."""
    assert definition.generation is not None
    started, stopped = run.all("generation_start"), run.all("generation_stop")
    measured = zip(run.all("generation_times"), definition.generation.repetitions, strict=False)
    for number, (event, repetitions) in enumerate(measured):
        seconds = read_repetitions(event)
        if seconds is None or len(seconds) != repetitions:
            yield breach(
                run, event, "T24.repetitions", names=" and ".join(GENERATION_SECONDS),
                repetitions=repetitions, times=_describe_times(event),
            )  # fmt: skip
        elif number < len(started) and number < len(stopped):
            yield from _check_room(run, event, seconds, (started[number], stopped[number]))


def _check_room(
    run: RunLog, event: Event, seconds: Sequence[float], between: tuple[Event, Event]
) -> Iterator[Finding]:
    start, stop = between
    if start.monotonic_ms is None or stop.monotonic_ms is None:
        return  # T4 reports it
    room_ms, total_ms = stop.monotonic_ms - start.monotonic_ms, 1000 * sum(seconds)
    if total_ms > room_ms + CLOCK_TOLERANCE_MS:
        yield breach(
            run, event, "T24.too_long", room_ms=room_ms, start_line=start.line, stop_line=stop.line,
            total_ms=total_ms,
        )  # fmt: skip
    elif room_ms - total_ms > UNTIMED_SHARE_MAX * room_ms + UNTIMED_MS:
        yield breach(
            run, event, "T24.untimed", outside=1 - total_ms / room_ms, room_ms=room_ms,
            line=start.line, stop_line=stop.line, total_ms=total_ms,
        )  # fmt: skip
    elif len(seconds) >= REPETITIONS_MIN:
        longest = sorted(seconds)[-max(1, int(LONGEST_SHARE * len(seconds))) :]
        if sum(longest) > LONGEST_TIME_SHARE_MAX * sum(seconds):
            yield breach(
                run, event, "T24.outlier", longest=len(longest), repetitions=len(seconds),
                share=sum(longest) / sum(seconds), longest_ms=1000 * longest[-1],
            )  # fmt: skip


def _check_growth(run: RunLog) -> Iterator[Finding]:
    """Check that no image costs much less alone than in a batch, and no batch less than one."""
    medians: list[tuple[int, float, Event]] = []
    for event in run.all("generation_times"):
        seconds = read_repetitions(event)
        if seconds is None:
            return
        medians.append((event.metadata["images_count"], statistics.median(seconds), event))
    for (count, fewer, event), (larger, more, _) in combinations(medians, 2):
        is_alone = count == medians[0][0]  # its time is a score; caches may favour other batches
        is_quick = is_alone and FASTER_MAX * fewer / count < more / larger
        if is_quick or FASTER_MAX * more < fewer:
            yield breach(
                run, event, "T24.growth", count=count, larger=larger, factor=FASTER_MAX,
                fewer_ms=1000 * fewer, more_ms=1000 * more,
            )  # fmt: skip
            return


def _describe_times(event: Event) -> str:
    """Return which time is impossible, else how many there are."""
    value = event.value if isinstance(event.value, dict) else {}
    lists = {name: value[name] for name in GENERATION_SECONDS if isinstance(value.get(name), list)}
    for name, times in lists.items():
        for number, time in enumerate(times):
            if not is_time(time):
                return f"{name}[{number}] = {format_value(time)}"
    lengths = [
        f"{len(lists[name])} {name}" if name in lists else f"no {name}"
        for name in GENERATION_SECONDS
    ]
    if len(lists) == len(GENERATION_SECONDS):
        for number, both in enumerate(zip(*lists.values(), strict=False)):
            if sum(both) <= 0:
                return f"{' and '.join(GENERATION_SECONDS)} [{number}] that are both 0"
    return ", ".join(lengths)


def _check_images(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Check that the evaluation and run_stop count what was generated."""
    assert definition.generation is not None
    images, ended = definition.generation.images, run.all("eval_stop")
    evaluated = (*run.all("eval_start"), *run.all("eval_accuracy"), *ended)
    for event in (*evaluated, *(run.all("run_stop")[:1] if ended else ())):
        samples = event.metadata["samples_count"]
        if samples != images:
            shown = format_value(samples)
            yield breach(run, event, "T24.samples_count", images=images, samples_count=shown)
            return


def _check_projections(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a closed run has a number for each judged image, so that any can be made again."""
    assert definition.generation is not None
    event, count = run.first("image_projections"), definition.generation.counts[-1]
    logged = event.value if event else None
    numbers = logged if isinstance(logged, list) else []
    is_sound = all(is_number(number) and math.isfinite(number) for number in numbers)
    if not run.converged or find_division(run, place) != "closed":
        return
    if event is None and (run.grows or not run.is_complete):
        return
    if len(numbers) != count or not is_sound or len(set(numbers)) < count / 2:
        got = "no such event" if event is None else f"{len(numbers)} numbers"
        yield breach(
            run, event or run.all("run_stop")[0], "T24.projections", count=count, got=got,
            distinct=len(set(map(str, numbers))),
        )  # fmt: skip
