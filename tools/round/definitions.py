"""Frozen definitions of a round, and submissions that are brought to the next one."""

import argparse
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from cepheid.compliance.judge.judgement import JudgedResult, judge
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from cepheid.rules.errors import UserError
from cepheid.rules.host import require_checkout
from cepheid.tools.console.program import (
    EXIT_FINDINGS,
    EXIT_FINE,
    make_new_folder,
    read_version,
    replace_file,
)

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


def carry(arguments: argparse.Namespace, pack: Callable[[Sequence[str]], int]) -> int:
    """Copy what an old submission can bring to the current round, and pack it.

    ``pack`` is `cepheid pack`. Exit code 1 where a result is left behind and must be run again.
    """
    judgement = judge([package.read(arguments.path)], rounds.load(arguments.round))
    left = [result for result in judgement.results if _must_run_again(result)]
    kept = [result for result in judgement.results if result not in left]
    for result in left:
        codes = sorted({f.code for f in result.findings if f.is_error and f.rule != "S4"})
        print(f"run again: {result.folder.path.name} ({', '.join(codes)})")
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
    packed = pack([str(arguments.output)])
    return packed or (EXIT_FINDINGS if left else EXIT_FINE)


def _must_run_again(result: JudgedResult) -> bool:
    """Return True for a result with an error that packing does not fix."""
    return any(finding.is_error and finding.rule != "S4" for finding in result.findings)
