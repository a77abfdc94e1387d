"""T1 and T5: the form of a log, and its finite values."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.log.records import PROBLEMS_MAX, TOO_MANY, Problem
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.rounds import Dialect


@rule("T1", Needs.RECORDS)
def check_form(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that every record is one JSON object of the right fields on a line of its own (T1)."""
    log_rules = rounds.load(place.round).log
    wanted = _DIALECTS[log_rules.dialect]
    for dialect, line in run.dialects.items():
        if dialect != log_rules.dialect:
            yield breach(run, line, "T1.dialect", dialect=_DIALECTS[dialect], expected=wanted)
    tolerated = log_rules.tolerated
    problems = run.other_problems if "around" in tolerated else run.problems
    reported = [p for p in problems if p.lost or p.foreign or p.kind not in tolerated]
    groups = _group_by_mistake(reported)
    for problem, times in groups:
        if problem.message == TOO_MANY and any(times >= PROBLEMS_MAX for _, times in groups):
            continue  # the one mistake of all these records says it
        many = f"{times:,} or more" if times >= PROBLEMS_MAX else f"{times:,}"
        everywhere = f", in {many} records" if times > 1 else ""
        column = f" (from column {problem.column:,} on)" if problem.column else ""
        yield breach(
            run, problem, f"T1.{problem.kind}", case=problem.case,
            problem=escape(problem.message) + column + everywhere, got=_format_problem(problem),
        )  # fmt: skip
    if not run.events and not run.other_problems:
        yield breach(run, None, "T1.no_record")


def _group_by_mistake(problems: Iterable[Problem]) -> list[tuple[Problem, int]]:
    """Return the problems with how often each is there.

    One mistake of a program, such as a field that it never writes, or one damage is in every
    record. It is one problem, at the first of them.
    """
    groups: dict[tuple[str, str], tuple[Problem, int]] = {}
    for problem in problems:
        mistake = problem.kind, problem.message
        first, times = groups.get(mistake, (problem, 0))
        groups[mistake] = first, times + 1
    return list(groups.values())


_DIALECTS: Mapping[Dialect, str] = {
    "mllog": "MLPerf v0.7 and later, :::MLLOG {json}",
    "mlp": "MLPerf v0.5, :::MLPv0.5.0 <benchmark> <seconds> (<file>:<line>) <key>: <json>",
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
                yield breach(
                    run, event, "T5.not_finite", name=where[0], key=format_value(event.key),
                    value=_describe_not_finite(where[1]),
                )  # fmt: skip


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
