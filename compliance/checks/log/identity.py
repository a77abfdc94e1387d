"""T14: what a log says it is."""

from collections.abc import Iterator

from cepheid.compliance.checks.definitions import DIVISIONS, find_log_definition, has_digest_of
from cepheid.compliance.checks.log.machine import check_machine
from cepheid.compliance.checks.log.peak import check_peak
from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding, format_value
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
        yield make_finding(
            run.path,
            round_event.line,
            "T14.round",
            "the log was written for another round",
            expected=f'"{place.round}"',
            got=format_value(round_event.value),
            hint=f"run again with the rules of {place.round}, or check with --round",
        )
    judged_by = find_log_definition(run, place)
    digest_event = run.first("definition_digest")
    if judged_by and place.described and has_digest_of(run, judged_by):
        yield from check_peak(run, place.described, judged_by)
    if judged_by and digest_event and not has_digest_of(run, judged_by):
        yield make_finding(
            run.path,
            digest_event.line,
            "T14.definition",
            f"the log was written for another version of {judged_by.name}, scale {judged_by.scale}",
            expected=f'"{judged_by.digest}"',
            got=format_value(digest_event.value),
            hint="run again with this version of the definition; "
            "what the log must agree with in the definition has not been checked",
        )


def _check_benchmark(run: RunLog) -> Iterator[Finding]:
    benchmark, scale = run.first("submission_benchmark"), run.first("submission_scale")
    if benchmark is None or not isinstance(benchmark.value, str):
        return
    names = definition.names()
    if benchmark.value not in names:
        guess = did_you_mean(benchmark.value[:100], names)
        yield make_finding(
            run.path,
            benchmark.line,
            "T14.benchmark",
            f"no benchmark {format_value(benchmark.value)}{guess}",
            expected=f"one of {', '.join(names)}",
            hint="write the benchmark's name as its folder under benchmarks/ has it; "
            "published logs of MLPerf are checked with --round",
        )
    elif scale is not None and isinstance(scale.value, str):
        scales = definition.scales(benchmark.value)
        if scale.value not in scales:
            yield make_finding(
                run.path,
                scale.line,
                "T14.scale",
                f"{benchmark.value} has no scale {format_value(scale.value)}"
                f"{did_you_mean(scale.value[:100], scales)}",
                expected=f"one of {', '.join(scales)}",
                hint="write the scale as the definition has it",
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
        yield make_finding(
            run.path,
            event.line,
            "T14.mismatch",
            f"{key} does not agree with {source}",
            expected=format_value(expected),
            got=format_value(event.value),
            hint="correct submitter in the system's description, or run again; never edit a log"
            if by_description
            else f"move the log into the folder of its own {part}, or run again",
        )


def _is_unknown(key: str, value: str, place: Place) -> bool:
    """Return True if another finding already reports that the name does not exist."""
    if key == "submission_benchmark":
        return value not in definition.names()
    if key == "submission_scale" and place.benchmark in definition.names():
        return value not in definition.scales(place.benchmark)
    return key == "submission_division" and value not in DIVISIONS
