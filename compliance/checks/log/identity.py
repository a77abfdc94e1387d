"""T14: what a log says it is, and the definition that it is judged by."""

from collections.abc import Iterator

from compliance.checks.registry import Needs, Place, make_finding, rule
from compliance.finding import Finding, format_value
from compliance.read.runlog import HasTexts, RunLog
from rules import definition, rounds
from rules.definition import Definition
from rules.errors import did_you_mean
from rules.events import CHOICES
from rules.rounds import RoundBenchmark

DIVISIONS = CHOICES["submission_division"]

_IDENTITY = {
    "submission_org": "submitter",
    "submission_platform": "system",
    "submission_benchmark": "benchmark",
    "submission_scale": "scale",
    "submission_division": "division",
}


def definition_of(run: HasTexts, place: Place) -> Definition | None:
    """The definition that a log is judged by: that of its folder, else the one that it names.

    None where there is no such benchmark or scale, and in a round of MLPerf.
    """
    if rounds.load(place.round).is_history:
        return None
    return definition_named(place.benchmark, place.scale) or definition_named(
        run.text("submission_benchmark"), run.text("submission_scale")
    )


def definition_named(benchmark: str | None, scale: str | None) -> Definition | None:
    """The definition of that name and scale, or None where there is none."""
    if benchmark in definition.names() and scale in definition.scales(benchmark):
        return definition.load(benchmark, scale)
    return None


def round_benchmark_of(run: HasTexts, place: Place) -> RoundBenchmark | None:
    """The benchmark of a round of MLPerf: the one that the log names, else that of its folder."""
    judged_in = rounds.load(place.round)
    named = judged_in.benchmark(run.text("submission_benchmark"))
    return named or judged_in.benchmark(place.benchmark)


def division_of(run: RunLog, place: Place) -> str | None:
    """The division of the folder, else the one that the log names; None for an unknown one."""
    division = place.division or run.text("submission_division")
    return division if division in DIVISIONS else None


def has_digest_of(run: RunLog, judged_by: Definition) -> bool:
    """False where a log was written for another version of the definition."""
    logged = run.text("definition_digest")
    return logged is None or logged == judged_by.digest


@rule("T14", Needs.RECORDS)
def identity(run: RunLog, place: Place) -> Iterator[Finding]:
    """Round, submitter, system, benchmark, scale, division and definition are what they must be."""
    yield from _known_benchmark(run)
    yield from _like_the_folder(run, place)
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
    judged_by = definition_of(run, place)
    digest_event = run.first("definition_digest")
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


def _known_benchmark(run: RunLog) -> Iterator[Finding]:
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


def _like_the_folder(run: RunLog, place: Place) -> Iterator[Finding]:
    for key, part in _IDENTITY.items():
        event, expected = run.first(key), getattr(place, part)
        if event is None or expected is None or not isinstance(event.value, str):
            continue
        if _is_unknown(key, expected, place) or _is_unknown(key, event.value, place):
            continue  # told by S1, or above
        if event.value != expected:
            by_description = part == "submitter"
            source = "the system description" if by_description else "the folder's name"
            yield make_finding(
                run.path,
                event.line,
                "T14.mismatch",
                f"{key} does not agree with {source}",
                expected=format_value(expected),
                got=format_value(event.value),
                hint="mend submitter in the system's description, or run again; logs are not edited"
                if by_description
                else f"lay the log into the folder of its own {part}, or run again",
            )


def _is_unknown(key: str, value: str, place: Place) -> bool:
    """True where another finding says already that there is no such thing."""
    if key == "submission_benchmark":
        return value not in definition.names()
    if key == "submission_scale" and place.benchmark in definition.names():
        return value not in definition.scales(place.benchmark)
    return key == "submission_division" and value not in DIVISIONS
