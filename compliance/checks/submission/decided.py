"""S8, S10, S11 and S13: what the organisers' decisions say of a submitter's results."""

from collections.abc import Iterator
from pathlib import Path

from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding, breach, escape
from cepheid.compliance.read.contents import Submitter
from cepheid.compliance.read.decisions import (
    Decisions,
    Kind,
    NotConfirmed,
    Objection,
    Receipt,
    Withdrawal,
)
from cepheid.compliance.read.manifest import FILE_NAME
from cepheid.rules import rounds
from cepheid.rules.digests import digest_file


@rule("S8", Needs.SUBMITTER)
def check_withdrawals(who: Submitter) -> Iterator[Finding]:
    """Show that a result was withdrawn, and why (S8)."""
    for path, entry in _list_about_results(who, Withdrawal):
        yield breach(
            path, None, "S8.withdrawn", day=str(entry.on), who=escape(entry.who),
            reason=escape(entry.reason),
        )  # fmt: skip


@rule("S10", Needs.SUBMITTER)
def check_receipt(who: Submitter) -> Iterator[Finding]:
    """Check that a submission was there in time, and is what was received (S10)."""
    received = list_receipts(who.decisions, who.path)
    due = rounds.load(who.round).due
    if not received:
        return
    if due and received[0].on > due:
        yield breach(who.path, None, "S10.late", day=str(received[0].on), due=str(due))
    last = received[-1]
    if last.manifest and last.manifest != digest_manifest(who.path):
        yield breach(who.path / FILE_NAME, None, "S10.changed", day=str(last.on))


def list_receipts(decisions: Decisions | None, path: Path) -> list[Receipt]:
    """Return the receipts of a submitter's folder, the first one first."""
    every = decisions.list_all(Receipt) if decisions else ()
    about = [each for each in every if decisions and decisions.concerns(each.path, path)]
    return sorted(about, key=lambda receipt: receipt.on)


def digest_manifest(folder: Path) -> str:
    """Return the SHA-256 of a submission's manifest; empty without one that can be read."""
    try:
        return digest_file(folder / FILE_NAME)
    except OSError:
        return ""


@rule("S11", Needs.SUBMITTER)
def check_objections(who: Submitter) -> Iterator[Finding]:
    """Check that no objection to a result that still stands was upheld, or is open (S11)."""
    withdrawn = {path for path, _ in _list_about_results(who, Withdrawal)}
    for path, entry in _list_about_results(who, Objection):
        rule_id, by, evidence = entry.rule, escape(entry.by), escape(entry.evidence)
        if entry.verdict == "open":
            yield breach(path, None, "S11.open", rule=rule_id, by=by, evidence=evidence)
        elif entry.verdict == "upheld" and path not in withdrawn:
            yield breach(
                path, None, "S11.upheld", rule=rule_id, by=by, evidence=evidence,
                reason=escape(entry.reason),
            )  # fmt: skip


@rule("S13", Needs.SUBMITTER)
def check_confirmation(who: Submitter) -> Iterator[Finding]:
    """Show that the result of a preview system was never confirmed (S13)."""
    for path, entry in _list_about_results(who, NotConfirmed):
        yield breach(path, None, "S13.not_confirmed", reason=escape(entry.reason))


def _list_about_results(who: Submitter, kind: type[Kind]) -> Iterator[tuple[Path, Kind]]:
    """List each entry of a kind with the result that it is about, or all of them."""
    for entry in who.decisions.list_all(kind) if who.decisions else ():
        for result in who.results:
            if who.decisions and who.decisions.concerns(entry.path, result.path):
                yield result.path, entry
