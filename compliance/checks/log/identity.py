"""T14: what a log says it is."""

from collections.abc import Iterator

from cepheid.compliance.checks.log.machine import check_machine, check_peak
from cepheid.compliance.checks.registry import (
    DIVISIONS,
    Needs,
    Place,
    find_log_definition,
    has_digest_of,
    rule,
)
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import definition
from cepheid.rules.errors import did_you_mean

_IDENTITY = {
    "submission_org": "submitter",
    "submission_platform": "system",
    "submission_benchmark": "benchmark",
    "submission_scale": "scale",
    "submission_division": "division",
}


@rule("T14", Needs.RECORDS)
def check_identity(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check round, submitter, system, benchmark, scale, division and definition (T14)."""
    yield from _check_benchmark(run)
    yield from _check_folder(run, place)
    if place.described:
        yield from check_machine(run, place.described)
    round_event = run.first("submission_round")
    if round_event and isinstance(round_event.value, str) and round_event.value != place.round:
        yield breach(
            run, round_event, "T14.round", round=place.round, logged=format_value(round_event.value)
        )
    judged_by = find_log_definition(run, place)
    digest_event = run.first("definition_digest")
    if judged_by and place.described and has_digest_of(run, judged_by):
        yield from check_peak(run, place.described, judged_by)
    if judged_by and digest_event and not has_digest_of(run, judged_by):
        yield breach(
            run,
            digest_event,
            "T14.definition",
            name=judged_by.name,
            scale=judged_by.scale,
            digest=judged_by.digest,
            logged=format_value(digest_event.value),
        )


def _check_benchmark(run: RunLog) -> Iterator[Finding]:
    benchmark, scale = run.first("submission_benchmark"), run.first("submission_scale")
    if benchmark is None or not isinstance(benchmark.value, str):
        return
    names = definition.names()
    if benchmark.value not in names:
        guess = did_you_mean(benchmark.value[:100], names)
        yield breach(
            run,
            benchmark,
            "T14.benchmark",
            benchmark=format_value(benchmark.value),
            guess=guess,
            names=", ".join(names),
        )
    elif scale is not None and isinstance(scale.value, str):
        scales = definition.scales(benchmark.value)
        if scale.value not in scales:
            yield breach(
                run,
                scale,
                "T14.scale",
                benchmark=benchmark.value,
                scale=format_value(scale.value),
                guess=did_you_mean(scale.value[:100], scales),
                scales=", ".join(scales),
            )


def _check_folder(run: RunLog, place: Place) -> Iterator[Finding]:
    for key, part in _IDENTITY.items():
        event, expected = run.first(key), getattr(place, part)
        if event is None or expected is None or not isinstance(event.value, str):
            continue
        if event.value == expected:
            continue
        if _is_unknown(key, expected, place) or _is_unknown(key, event.value, place):
            continue  # reported by S1, or above
        by_description = part == "submitter"
        source = "the system description" if by_description else "the folder's name"
        yield breach(
            run,
            event,
            "T14.mismatch",
            case="described" if by_description else "",
            key=key,
            source=source,
            expected=format_value(expected),
            part=part,
        )


def _is_unknown(key: str, value: str, place: Place) -> bool:
    """Return True if another finding already reports that the name does not exist."""
    if key == "submission_benchmark":
        return value not in definition.names()
    if key == "submission_scale" and place.benchmark in definition.names():
        return value not in definition.scales(place.benchmark)
    return key == "submission_division" and value not in DIVISIONS
