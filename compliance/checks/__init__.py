"""The checks: pure functions from what was read to findings, one for each numbered rule.

``check_log`` judges a log, ``check_result`` the logs of a result as a whole, ``check_submitter``
the folder around them. The round says which rules apply and how severe a breach is; the registry
says what a check needs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

# Importing the modules of the rules registers their checks.
from compliance.checks import (  # noqa: F401
    convergence,
    form,
    hyperparameters,
    identity,
    order,
    quality,
    result,
    submission,
    timing,
)
from compliance.checks.form import is_whole
from compliance.checks.identity import definition_named, definition_of, has_digest_of
from compliance.checks.registry import CHECKS, Needs, Place
from compliance.finding import Finding, capped, in_order
from compliance.package import ResultFolder, Submitter
from compliance.runlog import RunLog
from rules.definition import Definition
from rules.rounds import Round

__all__ = [
    "CHECKS",
    "Needs",
    "Place",
    "check_log",
    "check_result",
    "check_submitter",
    "definition_named",
    "definition_of",
]


def check_log(run: RunLog, place: Place, judged_in: Round) -> list[Finding]:
    """The findings of one log, in the order of its lines."""
    if not run.events:
        return capped(in_order(_run(judged_in, Needs.RECORDS, run, place, only=("T1",))))
    findings = list(_run(judged_in, Needs.RECORDS, run, place))
    definition = definition_of(run, place)
    if definition and has_digest_of(run, definition) and run.first("init_aborted") is None:
        findings += _run(judged_in, Needs.DEFINITION, run, definition, place)
        in_turn = not any(finding.rule == "T3" for finding in findings)
        if in_turn and is_whole(run, definition):
            findings += _run(judged_in, Needs.TIMELINE, run, definition, place)
    if definition and not place.in_result:  # T15 and T17 speak of a single log too
        alone = ResultFolder(run.path.parent, None, (run,))
        findings += _run(judged_in, Needs.RESULT, alone, definition, place, only=("T15", "T17"))
    return capped(in_order(findings))


def check_result(folder: ResultFolder, place: Place, judged_in: Round) -> list[Finding]:
    """The findings about the logs of a result together. There is at least one run."""
    definition = next(filter(None, (definition_of(run, place) for run in folder.runs)), None)
    if definition is None:
        return []  # T14 or S1 says that there is no such benchmark
    return in_order(_run(judged_in, Needs.RESULT, folder, definition, place))


def check_submitter(who: Submitter, judged_in: Round) -> list[Finding]:
    """The findings about a submitter's folder and its system descriptions."""
    return in_order(_run(judged_in, Needs.SUBMITTER, who))


def _run(
    judged_in: Round,
    needs: Needs,
    *subject: RunLog | ResultFolder | Definition | Place | Submitter,
    only: Sequence[str] = (),
) -> Iterator[Finding]:
    """The findings of all checks of one level, with the round's severity."""
    for check in CHECKS.values():
        if check.needs is not needs or check.rule not in judged_in.rules:
            continue
        if only and check.rule not in only:
            continue
        severity = judged_in.rules[check.rule].severity
        for finding in check.find(*subject):
            level = severity if finding.severity == "error" else finding.severity
            yield replace(finding, rule=check.rule, severity=level)
