"""`cepheid round`: the tasks of the organisers of a round, from its announcement to its archive."""

import argparse
import datetime
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cepheid.rules.errors import UserError, did_you_mean
from cepheid.tools import build_leaderboard, pack_submission
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import run_tool
from cepheid.tools.round import definitions, publication, records

COMMAND = read_command("round", today=datetime.datetime.now(datetime.UTC).date())

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
