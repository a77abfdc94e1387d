"""`cepheid diff`: list what changed between two builds of the leaderboard."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cepheid.compliance.finding import escape
from cepheid.compliance.report import formats as report
from cepheid.leaderboard.rows import changes, index
from cepheid.rules import extras
from cepheid.rules.layout import wrap
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, colour, run_tool

COMMAND = read_command("diff")


def main(argv: Sequence[str] | None = None) -> int:
    """Compare two builds. Exit code 1 where they differ."""
    arguments = COMMAND.parse(argv)
    old, new = index.read(arguments.old), index.read(arguments.new)
    changed = list(changes.find_changes(old, new))
    if arguments.format == "json":
        text = json.dumps([asdict(change) for change in changed], indent=2, allow_nan=False)
    else:
        counts = Counter(change.kind for change in changed)
        summary = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        rounds = {old["round"], new["round"]}
        names = escape(f"{old['round']} → {new['round']}")
        other = f"rounds: {names}\n" if len(rounds) > 1 else ""
        text = other + "\n".join([*map(str, changed), summary or "nothing changed"])
        text = colour(wrap(text), arguments.output)
    report.write_report(text, arguments.output)
    if any(change.speed and change.speed.verdict == "not tested" for change in changed):
        print(f"cepheid: {extras.explain_missing('scipy')}", file=sys.stderr)
    return EXIT_FINDINGS if changed else EXIT_FINE


if __name__ == "__main__":
    run_tool(main)
