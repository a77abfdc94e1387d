"""What the organisers' decisions change: waivers, and entries of the file that change nothing.

A waiver turns the errors of one rule in one file or folder into warnings that name the person who
waived them and the reason. It hides nothing. ``until`` is compared with the day on which the round
is due, not with the calendar: a published result stays what it is.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from cepheid.compliance.finding import Finding, breach, escape
from cepheid.compliance.read.contents import Submitter
from cepheid.compliance.read.decisions import Decisions, Waiver, Withdrawal
from cepheid.rules.rounds import Round


def apply_waivers(
    findings: Sequence[Finding], who: Submitter, judged_in: Round
) -> tuple[list[Finding], list[Waiver]]:
    """Return the findings, with each error that a waiver covers as a warning, and those waivers."""
    decisions = who.decisions
    every = decisions.list_all(Waiver) if decisions else ()
    waivable = [each for each in every if _is_waivable(each.rule, judged_in)]
    holding = [each for each in waivable if not _has_expired(each, judged_in)]
    applied, used = [], list[Waiver]()
    for finding in findings:
        waiver = next((w for w in holding if decisions and covers(decisions, w, finding)), None)
        if waiver is not None:
            used.append(waiver)
            by = f"waived by {escape(waiver.who)} until {waiver.until}: {escape(waiver.reason)}"
            message = f"{finding.message} ({by})"
            finding = replace(finding, severity="warning", message=message)
        applied.append(finding)
    return applied, used


def is_withdrawn(who: Submitter, path: Path) -> bool:
    """Return True for a file or folder of a result that was withdrawn (S8)."""
    decisions = who.decisions
    every = decisions.list_all(Withdrawal) if decisions else ()
    return any(decisions.concerns(each.path, path) for each in every if decisions)


def covers(decisions: Decisions, waiver: Waiver, finding: Finding) -> bool:
    """Return True for an error of the waiver's rule in its file, or in a file of its folder."""
    is_waived = finding.is_error and finding.rule == waiver.rule
    return is_waived and decisions.concerns(waiver.path, finding.path)


def _is_waivable(rule: str, judged_in: Round) -> bool:
    return rule in judged_in.rules and judged_in.rules[rule].waivable


def _has_expired(waiver: Waiver, judged_in: Round) -> bool:
    return judged_in.due is not None and waiver.until < judged_in.due


def report_decisions(
    decisions: Decisions, judged_in: Round, used: Iterable[Waiver], whole: Collection[str] | None
) -> Iterator[Finding]:
    """Report what is wrong with the file, and waivers without effect. No result is to blame.

    ``whole`` names the submitters whose folders were read whole; None stands for everybody.
    """
    if "S9" not in judged_in.rules:
        return
    for problem in decisions.problems:
        yield breach(
            decisions, problem, "S9.form", problem=escape(problem.message)[:300], got=problem.got
        )
    needed = set(used)
    for waiver in decisions.list_all(Waiver):
        about = f"{waiver.rule} at {escape(str(waiver.path))}"
        if not _is_waivable(waiver.rule, judged_in):
            waivable = ", ".join(known.id for known in judged_in.rules.values() if known.waivable)
            yield breach(decisions, waiver, "S9.not_waivable", rule=waiver.rule, waivable=waivable)
        elif _has_expired(waiver, judged_in):
            yield breach(
                decisions, waiver, "S9.expired", about=about, until=str(waiver.until),
                due=str(judged_in.due),
            )  # fmt: skip
        elif waiver not in needed and (whole is None or waiver.path.parts[0] in whole):
            yield breach(decisions, waiver, "S9.unused", about=about)
