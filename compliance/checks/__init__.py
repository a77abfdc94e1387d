"""Check what was read: one pure function for each numbered rule, from logs to findings.

``check_log`` judges one log, ``check_result`` the logs of a result together, ``check_submitter``
the folder around them. The round says which rules apply and how severe a breach is. The registry
says what a check needs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from cepheid.compliance.checks.log import (  # noqa: F401
    events,
    form,
    generation,
    hyperparameters,
    identity,
    order,
    quality,
)
from cepheid.compliance.checks.log.events import find_whole_definition
from cepheid.compliance.checks.mlperf import named, requirements, submitted  # noqa: F401

# Importing these modules registers their checks.
from cepheid.compliance.checks.registry import CHECKS as CHECKS
from cepheid.compliance.checks.registry import (
    Needs,
    find_log_definition,
    find_round_benchmark,
    has_digest_of,
)
from cepheid.compliance.checks.registry import Place as Place
from cepheid.compliance.checks.result import (  # noqa: F401
    attached,
    convergence,
    copies,
    energy,
    runs,
    seeds,
)
from cepheid.compliance.checks.submission import decided, files, machine, manifest  # noqa: F401
from cepheid.compliance.checks.time import clock, timing  # noqa: F401
from cepheid.compliance.finding import Finding, limit_findings, sort_findings
from cepheid.compliance.read.contents import ResultFolder, Submitter
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.compliance.read.summary import ResultSummary
from cepheid.rules.definition import Definition
from cepheid.rules.rounds import Round, RoundBenchmark


def check_log(run: RunLog, place: Place, judged_in: Round) -> list[Finding]:
    """Return the findings about one log, in the order of its lines."""
    if not run.events:
        return limit_findings(
            sort_findings(_run_checks(judged_in, Needs.RECORDS, run, place, only=("T1",)))
        )
    findings = list(_run_checks(judged_in, Needs.RECORDS, run, place))
    definition = find_log_definition(run, place)
    if definition and has_digest_of(run, definition) and run.first("init_aborted") is None:
        findings += _run_checks(judged_in, Needs.DEFINITION, run, definition, place)
        is_in_order = not any(finding.rule == "T3" for finding in findings)
        if is_in_order and find_whole_definition(run, place):
            findings += _run_checks(judged_in, Needs.TIMELINE, run, definition, place)
    judged_by: Definition | RoundBenchmark | None = definition or find_round_benchmark(run, place)
    if judged_by and not place.in_result:  # T15 and T17 also apply to a single log
        alone = ResultLogs(ResultFolder(run.path.parent, None, (run.path,)), (run,))
        findings += _run_checks(
            judged_in, Needs.RESULT, alone, judged_by, place, only=("T15", "T17")
        )
    return limit_findings(sort_findings(findings), goes_on=run.grows)


def check_result(logs: ResultLogs, place: Place, judged_in: Round) -> list[Finding]:
    """Return the findings about the logs of a result together; there is at least one run."""
    judged_by: Definition | RoundBenchmark | None = None
    for run in logs.runs:
        judged_by = judged_by or find_log_definition(run, place)
        judged_by = judged_by or find_round_benchmark(run, place)
    if judged_by is None:
        return []  # T14, S1 or M2 reports that the benchmark does not exist
    return sort_findings(_run_checks(judged_in, Needs.RESULT, logs, judged_by, place))


def check_submitter(who: Submitter, judged_in: Round) -> list[Finding]:
    """Return the findings about a submitter's folder and its system descriptions."""
    who = replace(who, round=judged_in.name)
    return sort_findings(_run_checks(judged_in, Needs.SUBMITTER, who))


def check_logs_of_submitter(
    who: Submitter, summaries: Mapping[Path, ResultSummary], judged_in: Round
) -> list[Finding]:
    """Return the findings about a submitter's folder that need its logs to be judged first.

    ``summaries`` are what remains of the logs of each result, by the folder of the result.
    """
    who = replace(who, round=judged_in.name)
    return sort_findings(_run_checks(judged_in, Needs.SUMMARIES, who, summaries))


@cache
def _list_rules(needs: Needs, only: tuple[str, ...]) -> Sequence[str]:
    """Return the rules of one level, all of which have registered their checks by now."""
    known = [rule for rule, check in CHECKS.items() if check.needs is needs]
    return [rule for rule in known if rule in only] if only else known


def _run_checks(
    judged_in: Round, needs: Needs, *subject: object, only: tuple[str, ...] = ()
) -> Iterator[Finding]:
    """Yield the findings of all checks of one level, with the severity of the round."""
    kind = next((about.kind for about in subject if isinstance(about, Definition)), None)
    for rule in _list_rules(needs, only):
        check, asked = CHECKS[rule], judged_in.rules.get(rule)
        if asked is None or (kind is not None and kind not in check.kinds):
            continue
        for finding in check.find(*subject):
            level = asked.severity if finding.severity == "error" else finding.severity
            assert finding.rule == check.rule, f"{check.rule} yields {finding.code}"
            yield finding if level == finding.severity else replace(finding, severity=level)
