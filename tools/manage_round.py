"""`cepheid round`: the tasks of the organisers of a round, from its announcement to its archive."""

import argparse
import datetime
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from cepheid.rules.errors import UserError, did_you_mean
from cepheid.tools import build_leaderboard, pack_submission
from cepheid.tools.console.arguments import Command, declare, offer_round
from cepheid.tools.console.program import run_tool
from cepheid.tools.round import definitions, publication, records

EXAMPLES = """\
examples:
  cepheid round freeze v1.0                         copy the definitions that judge the round
  cepheid round receive submissions/acme            note that a submission arrived today
  cepheid round status submissions                  one line for each submission
  cepheid round status old/submissions --round v1.0 --next v1.1/site
      which previews of v1.0 the next round confirms (S13)
  cepheid round preview submissions --output preview      the site without names
  cepheid round publish submissions --output v1.0 --sign ~/.ssh/id_ed25519
      site, archives of submissions and rules, and their digests, signed
  cepheid round carry old/submissions/acme --output submissions/acme
      bring an old submission to the current round: what need not run again

docs/organisers.md leads through a round.

exit codes: 0 fine; 1 findings, or results that were left behind; 2 wrong use
"""

COMMAND = Command(
    "round",
    "Lead a round: receipts, status, preview, publication, frozen definitions.",
    EXAMPLES,
    (
        declare("verb", "receive, status, preview, publish, freeze or carry"),
        declare("path", "the folder submissions, a submitter's folder, or a round's name", Path),
        offer_round(),
        declare("--output", "the folder to write", Path, "DIR"),
        declare(
            "--on",
            "the day of a receipt or a publication (default: today, UTC)",
            datetime.date.fromisoformat,
            "DAY",
            default=datetime.datetime.now(datetime.UTC).date(),
        ),
        declare("--format", "text (default) or json", default="text", choices=("text", "json")),
        declare("--next", "with status: the site of the round that follows", Path, "SITE"),
        declare("--commit", "with publish: the commit of the submissions", default=""),
        declare("--sign", "with publish: a private SSH key that signs the digests", Path, "KEY"),
    ),
)

ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "receive": records.receive,
    "status": records.show_status,
    "preview": publication.preview,
    "publish": partial(publication.publish, build=build_leaderboard.main),
    "freeze": definitions.freeze,
    "carry": partial(definitions.carry, pack=pack_submission.main),
}
WITH_OUTPUT = ("preview", "publish", "carry")


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the first argument names."""
    arguments = COMMAND.parse(argv)
    verb = arguments.verb
    if verb not in ACTIONS:
        guess = did_you_mean(verb, ACTIONS)
        raise UserError(f'no action "{verb}"{guess} (all: {", ".join(ACTIONS)})')
    if verb in WITH_OUTPUT and arguments.output is None:
        raise UserError(f"cepheid round {verb}: --output is missing; give the folder to write")
    return ACTIONS[verb](arguments)


if __name__ == "__main__":
    run_tool(main)
