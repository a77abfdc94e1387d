"""S1: every file and folder of a submission has a place, and nothing lies anywhere else."""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import PurePosixPath

from cepheid.compliance.finding import Finding, breach
from cepheid.compliance.read.contents import LEFT_BY_TOOLS, README, SubmittedFile, Submitter
from cepheid.rules import definition

PROBLEMS_MAX = 100  # listed one by one
PARTS = ("systems", "results", "benchmarks")
_AT_TOP = re.compile(
    rf"{re.escape(README)}|NOTICE|(LICEN[CS]E|COPYING)(\.(txt|md))?|manifest\.json|waivers\.yaml"
)
_LICENCE = re.compile(r"(LICEN[CS]E|COPYING)(\.(txt|md))?", re.IGNORECASE)
_OF_RESULT = re.compile(
    r"(result|interrupted|power)_[^/]*\.(txt|csv|partial)|manifest\.json", re.IGNORECASE
)
"""Names that tools read in the folder of a result or of a submitter."""


def check_places(who: Submitter) -> Iterator[Finding]:
    """Report what lies in a submission where nothing belongs; not what is inside of that."""
    yield from islice(_check_places(who), PROBLEMS_MAX)


def _check_places(who: Submitter) -> Iterator[Finding]:
    misplaced: set[PurePosixPath] = set()
    for file in sorted(who.files or (), key=lambda file: file.name):
        if misplaced.isdisjoint(file.name.parents) and not _has_place(file):
            misplaced.add(file.name)
            yield breach(
                who.path / file.name,
                None,
                "S1.misplaced",
                kind="folder" if file.is_folder else "file",
                place=_describe_place(file.name),
            )
    yield from _check_numbers(who)


def _has_place(file: SubmittedFile) -> bool:
    """Return True where a file or folder may lie; what lists results reports what is in theirs."""
    parts = file.name.parts
    if any(part.startswith(".") for part in parts):
        return True  # S5 reports hidden names
    match parts:
        case (name,):
            known = (*PARTS, *LEFT_BY_TOOLS)
            return name in known if file.is_folder else _AT_TOP.fullmatch(name) is not None
        case ("systems", name):
            return not file.is_folder and name.endswith(".json")
        case ("results", _) | ("results", _, _):
            return file.is_folder
        case ("benchmarks", name):
            is_licence = _LICENCE.fullmatch(name) is not None
            return name in definition.names() if file.is_folder else is_licence
        case ("benchmarks", _, *_, name):
            return file.is_folder or _OF_RESULT.fullmatch(name) is None
        case ("results" | "checkpoints" | "leaderboard", *_):
            return True  # S1.unexpected and S1.left_by_tools report these
    return False


def _describe_place(name: PurePosixPath) -> str:
    return {
        "systems": "systems/<system>.json",
        "results": "results/<system>/<benchmark>-<scale>-<division>/",
        "benchmarks": "benchmarks/<benchmark>/ with code, and no logs or manifests in it",
    }.get(name.parts[0] if len(name.parts) > 1 else "", "systems/, results/, benchmarks/, LICENSE,"
          f" {README}, manifest.json, waivers.yaml")  # fmt: skip


def _check_numbers(who: Submitter) -> Iterator[Finding]:
    """Report reports and pictures of runs that are not there."""
    for result in who.results:
        numbers = {path.stem.partition("_")[2] for path in result.runs}
        for path in result.attached:
            if path.stem.partition("_")[2] not in numbers:
                yield breach(path, None, "S1.no_run", index=path.stem.partition("_")[2])
