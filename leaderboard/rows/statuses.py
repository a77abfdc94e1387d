"""The status of each submission, and what the organisers decided, as tables show both."""

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cepheid.compliance.checks.submission.decided import list_receipts
from cepheid.compliance.finding import Finding, escape
from cepheid.compliance.read.contents import Submitter
from cepheid.compliance.read.decisions import (
    Decision,
    Dispute,
    NotConfirmed,
    Objection,
    Receipt,
    Reproduction,
    Waiver,
)
from cepheid.leaderboard.rows.entry import Entry, group_entries
from cepheid.rules.rounds import Round

DATES = (  # of a round, in days after D (S10)
    (-56, "rules and definitions are frozen"),
    (-14, "last day to ask for a waiver or a clarification"),
    (0, "submissions are due"),
    (1, "the review begins"),
    (14, "last day for objections and borrowed hyperparameters"),
    (21, "objections are answered and decided"),
    (28, "last day for an appeal"),
    (35, "the tables are published"),
)
PREVIEW_DAYS = 180  # in which a preview system must be available (S13)


class Status(NamedTuple):
    """One submission in the table of all: every text is what its column shows."""

    submitter: str
    received: str
    results: str
    errors: str
    warnings: str
    objections: str
    disputes: str
    previews: str


HEADER = Status._fields


def list_statuses(entries: Sequence[Entry], judged_in: Round) -> Iterator[Status]:
    """List the status of each submission that has a result."""
    whose = group_entries(entries, lambda entry: str(entry.judged.who and entry.judged.who.path))
    for _, members in sorted(whose.items()):
        who = members[0].judged.who
        findings = list(dict.fromkeys(finding for e in members for finding in e.findings))
        decided, submitter = list_decisions(who), members[0].names.submitter
        folder = escape(who.name) if who and who.name else submitter
        yield Status(
            submitter if folder == submitter else f"{submitter} ({folder})",  # another team
            _describe_receipt(who, judged_in),
            _count(entry.standing.verdict for entry in members),
            _count_rules(findings, "error"),
            _count_rules(findings, "warning"),
            _count(one.verdict for one in decided if isinstance(one, Objection)),
            _count(one.verdict for one in decided if isinstance(one, Dispute)),
            _describe_previews(members, judged_in),
        )


def _count(words: Iterable[str]) -> str:
    """Count words: ``3 scored, 1 withdrawn``."""
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(words).items()))


def _count_rules(findings: Iterable[Finding], severity: str) -> str:
    counts = Counter(finding.rule for finding in findings if finding.severity == severity)
    return ", ".join(f"{rule}: {count}" for rule, count in sorted(counts.items()))


def _describe_receipt(who: Submitter | None, judged_in: Round) -> str:
    received = list_receipts(who.decisions, who.path) if who else []
    if not received:
        return "no receipt"
    is_late = judged_in.due is not None and received[0].on > judged_in.due
    return f"{received[0].on}{' (late)' if is_late else ''}"


def _describe_previews(members: Sequence[Entry], judged_in: Round) -> str:
    systems = sorted({e.names.system for e in members if e.availability == "preview"})
    by = judged_in.due and judged_in.due + datetime.timedelta(PREVIEW_DAYS)
    return ", ".join(systems) + (f" until {by}" if systems and by else "")


def list_dates(judged_in: Round) -> list[tuple[datetime.date, str]]:
    """List the dates of a round whose day D was announced."""
    if judged_in.due is None:
        return []
    return [(judged_in.due + datetime.timedelta(days), what) for days, what in DATES]


def list_decisions(who: Submitter | None, entry: Entry | None = None) -> list[Decision]:
    """List what was decided about a submitter's results, or about one of them."""
    if who is None or who.decisions is None:
        return []
    decisions, found = who.decisions, []
    places = [entry.judged.folder.path] if entry else [r.path for r in who.results] or [who.path]
    for one in (one for entries in decisions.entries.values() for one in entries):
        paths = [one.path, one.other] if isinstance(one, Dispute) else [one.path]
        if any(
            decisions.concerns(path, place) or decisions.is_within(path, place)
            for path in paths
            for place in places
        ):
            found.append(one)
    return found


class Line(NamedTuple):
    """A decision as a row: when, what kind, about what, in words, and by whom."""

    on: str
    kind: str
    path: str
    text: str
    who: str


def describe_decision(one: Decision) -> Line:
    """Describe a decision in words."""
    kind, text = type(one).__name__.lower(), getattr(one, "reason", "")
    match one:
        case Waiver():
            text = f"{one.rule} is waived until {one.until}: {one.reason}"
        case Dispute():
            text = f"{one.verdict} ({one.other}): {one.reason}"
        case Objection():
            asked = f"{one.rule}, by {one.by}: {one.evidence}; asked for: {one.asked_for}"
            answer = f"; answer: {one.answer}" if one.answer else ""
            text = f"{asked}{answer}; {one.verdict}" + (f": {one.reason}" if one.reason else "")
        case NotConfirmed():
            kind = "not confirmed"
        case Reproduction():
            kind = "reproduced"
        case Receipt():
            text = "received" + (f", manifest {one.manifest[:12]}…" if one.manifest else "")
    on, who = str(getattr(one, "on", "")), escape(getattr(one, "who", ""))
    return Line(on, kind, escape(str(one.path)), escape(text), who)
