"""Receipts of submissions, and the status of all of them."""

import argparse
import datetime
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from cepheid.compliance.checks.submission.decided import digest_manifest
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.judge.unit import use_processes
from cepheid.compliance.read import decisions, package
from cepheid.compliance.read.layout import SUBMISSIONS
from cepheid.compliance.score.kinds import GENERATION
from cepheid.leaderboard.rows import index
from cepheid.leaderboard.rows.entry import Entry, list_entries
from cepheid.leaderboard.rows.statuses import HEADER, list_dates, list_statuses
from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from cepheid.rules.layout import lay_out
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, replace_file

SLOWER_MOST = 1.05  # how many times as long a confirmed preview may take (S13)


def receive(arguments: argparse.Namespace) -> int:
    """Note in the organisers' file that a submission arrived, and the digest of its manifest."""
    folder = Path(arguments.path).absolute()
    if not folder.is_dir() or folder.parent.name != SUBMISSIONS:
        raise UserError(f"{arguments.path}: expected a submitter's folder in {SUBMISSIONS}/")
    path = folder.parent / decisions.FILE_NAME
    before = decisions.read(path) if path.exists() else decisions.Decisions(path)
    for problem in before.problems:
        raise UserError(f"{path}:{problem.line}: {problem.message}; fix: correct the file first")
    digest = digest_manifest(folder)
    entry = f"path: {folder.name}, on: {arguments.on}" + (f", manifest: {digest}" * bool(digest))
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    replace_file(path, add_receipt(text, f"{{{entry}}}"))
    print(f"{path}: {folder.name} received on {arguments.on}")
    judged_in = rounds.load(arguments.round)
    if judged_in.due and arguments.on > judged_in.due:
        print(f"it is late: submissions were due on {judged_in.due} (S10)")
    elif judged_in.undecided:
        print(judged_in.undecided)
    return EXIT_FINE


def add_receipt(text: str, entry: str) -> str:
    """Add an entry to the receipts of an organisers' file; all other lines stay."""
    lines = text.splitlines()
    if "receipts:" not in lines:
        return (
            text + ("" if not text or text.endswith("\n") else "\n") + f"receipts:\n  - {entry}\n"
        )
    place = lines.index("receipts:") + 1
    after = next((line for line in lines[place:] if line.lstrip().startswith("- ")), "  - ")
    indent = after[: len(after) - len(after.lstrip())]
    lines.insert(place, f"{indent}- {entry}")
    return "\n".join(lines) + "\n"


def show_status(arguments: argparse.Namespace) -> int:
    """Print one line for each submission; with the next round, which previews it confirms."""
    judged_in = rounds.load(arguments.round)
    judgement = judge(
        [package.read(arguments.path, judged_in.layout)], judged_in, use_processes(None)
    )
    entries = list_entries(judgement.results)
    statuses = list(list_statuses(entries, judged_in))
    unconfirmed = list(find_unconfirmed(entries, arguments.next)) if arguments.next else []
    if arguments.format == "json":
        lost = [{"id": entry.id, "reason": why} for entry, why in unconfirmed]
        due = judged_in.due and str(judged_in.due)
        content = {
            "round": judged_in.name,
            "due": due,
            "submissions": [one._asdict() for one in statuses],
        }
        print(json.dumps({**content, "not_confirmed": lost}, indent=2))
    else:
        print("\n".join(lay_out([list(HEADER), *map(list, statuses)])))
        today = datetime.datetime.now(datetime.UTC).date()
        coming = [(day, what) for day, what in list_dates(judged_in) if day >= today]
        if coming:
            print(f"\nnext: {coming[0][0]} {coming[0][1]}")
        if judged_in.undecided:
            print(f"\n{judged_in.undecided}")
        print("".join(write_entries(unconfirmed, arguments.on)), end="")
    return EXIT_FINDINGS if unconfirmed else EXIT_FINE


def find_unconfirmed(entries: Sequence[Entry], following: Path) -> Iterator[tuple[Entry, str]]:
    """Find the results of preview systems that the next round does not confirm, and say why."""
    then = {result["id"]: result for result in index.read(following)["results"]}
    for entry in entries:
        if entry.availability != "preview" or not entry.standing.score:
            continue
        result = then.get(entry.id)
        if result is None or result.get("availability") != "available":
            yield entry, "The next round has no result of the system as available."
            continue
        before, now = entry.time, result.get("time_minutes")
        ratio = now / before.mean if before and now else None
        if entry.kind is GENERATION:
            rate = result.get(GENERATION.ranked_by)
            ratio = entry.standing.score.main.mean / rate if rate else None
        if ratio is None:
            yield entry, "The result of the next round has no number."
        elif ratio > SLOWER_MOST:
            yield entry, f"The next round has it {100 * (ratio - 1):.0f}% slower."


def write_entries(unconfirmed: Sequence[tuple[Entry, str]], day: datetime.date) -> Iterator[str]:
    """Write the entries for the organisers' file of the earlier round."""
    if unconfirmed:
        yield "\nfor decisions.yaml of this round:\nnot_confirmed:\n"
    for entry, why in unconfirmed:
        parts = Path(entry.judged.folder.path).absolute().parts[-4:]
        yield f"  - path: {'/'.join(parts)}\n    reason: {why}\n"
        yield f"    who: FILL IN, organiser\n    on: {day}\n"
