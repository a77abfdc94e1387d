"""T1 and T5: the form of a log, and its finite values."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding, escape, format_value
from cepheid.compliance.read.log.records import Problem
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.events import (
    MARKER,
)
from cepheid.rules.rounds import Dialect, ProblemKind

_FIXES: Mapping[ProblemKind, str] = {
    "file": "check that this is the run log itself, a plain text file within the bounds of T1, and "
    "that others may read it",
    "text": "write the log as UTF-8 text; keep binary output of other programs out of it",
    "around": "begin each record at the start of a line; let other output end with a line feed",
    "place": "begin each record on a line of its own with the marker at its start; "
    "let only one process write to the log",
    "json": "write one JSON object after the marker, for example with mllog or json.dumps",
    "truncated": "the program was killed or the disk was full; run again, or copy the whole file",
    "fields": "write key, time, value and metadata, each once; mllog does",
    "schema": "write namespace, time_ms, event_type, key, value and metadata, each once, "
    "as rules/schemas/event.schema.json says",
}


@rule("T1", Needs.RECORDS)
def check_form(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that every record is one JSON object of the right fields on a line of its own (T1)."""
    log_rules = rounds.load(place.round).log
    yield from _check_dialects(run, log_rules.dialect)
    tolerated = log_rules.tolerated
    problems = run.other_problems if "around" in tolerated else run.problems
    reported = [p for p in problems if p.lost or p.kind not in tolerated]
    for problem, times in _group_by_mistake(reported):
        everywhere = f", in {times:,} records" if times > 1 else ""
        yield make_finding(
            run.path,
            problem.line,
            f"T1.{problem.kind}",
            escape(problem.message) + everywhere,
            got=_format_problem(problem),
            hint=_FIXES[problem.kind],
        )
    if not run.events and not run.other_problems:
        yield make_finding(
            run.path,
            None,
            "T1.no_record",
            "the file holds no record of a run",
            expected=f'lines that begin with "{MARKER} "',
            hint="give the run log that the benchmark wrote; a log written by mllog has such lines",
        )


def _group_by_mistake(problems: Iterable[Problem]) -> list[tuple[Problem, int]]:
    """Return the problems with how often each is there.

    One mistake of a program, such as a field that it never writes, is in every record. It is one
    problem, at the first of them.
    """
    groups: dict[object, tuple[Problem, int]] = {}
    for problem in problems:
        is_systematic = problem.kind == "schema" and not problem.lost
        mistake = (problem.kind, problem.message) if is_systematic else id(problem)
        first, times = groups.get(mistake, (problem, 0))
        groups[mistake] = first, times + 1
    return list(groups.values())


def _check_dialects(run: RunLog, expected: Dialect) -> Iterator[Finding]:
    for dialect, line in run.dialects.items():
        if dialect != expected:
            yield make_finding(
                run.path,
                line,
                "T1.dialect",
                f"the record is in the dialect of {_DIALECTS[dialect]}",
                expected=f"records in the dialect of {_DIALECTS[expected]}",
                hint="write the log with the mllog of the round, or check with --round",
            )


_DIALECTS: Mapping[Dialect, str] = {
    "mllog": "MLPerf v0.7 and later, :::MLLOG {json}",
    "mll": "MLPerf v0.6, :::MLL <seconds> <key>: {json}",
}


def _format_problem(problem: Problem) -> str:
    if problem.kind in ("fields", "schema"):  # JSON already, with its own quotes
        return escape(problem.got)
    return format_value(problem.got) if problem.got else ""


@rule("T5", Needs.RECORDS)
def check_finite_values(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that no number of the log is NaN or infinite (T5)."""
    if not run.not_finite:
        return
    for event in (event for event in run.events if event.line in run.not_finite):
        for name, part in (("value", event.value), ("metadata", event.metadata)):
            where = _find_not_finite(part, name)
            if where:
                yield make_finding(
                    run.path,
                    event.line,
                    "T5.not_finite",
                    f"{where[0]} of {format_value(event.key)} is not finite",
                    expected="a finite number",
                    got=_describe_not_finite(where[1]),
                    hint="end the run as aborted when its loss or quality is not finite, "
                    "and say so in the reason instead of the number",
                )


def _describe_not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    sign = "-" if value < 0 else ""
    return f"{sign}Infinity, or a number beyond {sign}1.8e308, which no program can read back"


def _find_not_finite(value: Any, name: str) -> tuple[str, float] | None:
    """Return name and value of the first number that is not finite.

    The parser bounds the nesting, so the recursion ends.
    """
    if isinstance(value, float):
        return None if math.isfinite(value) else (name, value)
    if isinstance(value, Mapping):
        inner = ((f"{name}.{format_value(key)[1:-1][:60]}", item) for key, item in value.items())
    elif isinstance(value, list):
        inner = ((f"{name}[{i}]", item) for i, item in enumerate(value))
    else:
        return None
    return next(
        filter(None, (_find_not_finite(item, inner_name) for inner_name, item in inner)), None
    )
