"""`cepheid round`: the tasks of the organisers of a round, from its announcement to its archive."""

import argparse
import datetime
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.host import require_checkout
from cepheid.tools import build_leaderboard, pack_submission
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import (
    EXIT_FINDINGS,
    EXIT_FINE,
    make_new_folder,
    read_version,
    replace_file,
    run_tool,
)
from cepheid.tools.round import publication, records

COMMAND = read_command("round", today=datetime.datetime.now(datetime.UTC).date())

JUDGED_BY = ("benchmark.yaml", "rcp.json")  # of each benchmark


def freeze(arguments: argparse.Namespace) -> int:
    """Copy the definitions that judge a round, and note the version of the checker."""
    name = str(arguments.path)
    rounds.load(name)  # refuses an unknown name
    require_checkout("a frozen definition")
    target = definition.FROZEN / name
    if name != rounds.CURRENT:
        raise UserError(f"{name} is not the current round; its definitions may have changed since")
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(exist_ok=True)
    with make_new_folder(target) as new:
        for benchmark in definition.names():
            (new / benchmark).mkdir()
            for file in JUDGED_BY:
                source = definition.locate_benchmarks() / benchmark / file
                if source.is_file():
                    shutil.copyfile(source, new / benchmark / file)
    path = rounds.FOLDER / f"{name}.yaml"
    text = re.sub(r"(?m)^checker:.*\n", "", path.read_text(encoding="utf-8"))
    replace_file(path, text.rstrip("\n") + f"\nchecker: {read_version()}\n")
    print(f"{target}: {len(definition.names())} definitions, frozen for {name}")
    print(f"{path}: judged by cepheid {read_version()}")
    return EXIT_FINE


def carry(arguments: argparse.Namespace) -> int:
    """Copy what an old submission can bring to the current round, and pack it.

    Exit code 1 where a result is left behind and must be run again.
    """
    judgement = judge([package.read(arguments.path)], rounds.load(arguments.round))
    # Packing fixes what S4 finds.
    errors_of = [
        (result, {each.code for each in result.findings if each.is_error and each.rule != "S4"})
        for result in judgement.results
    ]
    left = [result for result, codes in errors_of if codes]
    kept = [result for result, codes in errors_of if not codes]
    for result, codes in errors_of:
        if codes:
            print(f"run again: {result.folder.path.name} ({', '.join(sorted(codes))})")
    if not kept:
        raise UserError(f"{arguments.path}: no result holds in {arguments.round}; run them again")
    root = Path(arguments.path)
    with make_new_folder(arguments.output) as new:
        shutil.copytree(root, new, dirs_exist_ok=True, symlinks=True)
        (new / "manifest.json").unlink(missing_ok=True)
        for result in left:
            shutil.rmtree(new / result.folder.path.absolute().relative_to(root.absolute()))
        used = {result.place.benchmark for result in kept}
        for code in (new / "benchmarks").glob("*/"):
            if code.name not in used:
                shutil.rmtree(code)
    for result in kept:
        print(f"carried: {result.folder.path.name}")
    packed = pack_submission.main([str(arguments.output)])
    return packed or (EXIT_FINDINGS if left else EXIT_FINE)


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "receive": records.receive,
    "status": records.show_status,
    "preview": publication.preview,
    "publish": partial(publication.publish, build=build_leaderboard.main),
    "freeze": freeze,
    "carry": carry,
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
