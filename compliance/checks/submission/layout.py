"""S1 and S2: the layout and the system descriptions of a submitter's folder."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from cepheid.compliance.checks.registry import DIVISIONS, Needs, rule
from cepheid.compliance.checks.submission.machine import check_machine
from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.contents import (
    LEFT_BY_TOOLS,
    LOG_NAME,
    README,
    ResultFolder,
    SubmittedFile,
    Submitter,
    SystemFile,
    is_like_log,
)
from cepheid.rules import definition
from cepheid.rules.documents import SCHEMAS, find_unfilled
from cepheid.rules.errors import did_you_mean
from cepheid.rules.names import explain_name

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


PROBLEMS_PER_DESCRIPTION_MAX = 10


@rule("S1", Needs.SUBMITTER)
def check_layout(who: Submitter) -> Iterator[Finding]:
    """Check names and places of folders and files, and that systems have descriptions (S1)."""
    why = explain_name(who.name) if who.name is not None else ""
    if why:
        yield breach(who, None, "S1.submitter_name", why=why, name=format_value(who.name))
    if who.in_submission and not who.results:
        yield breach(who, None, "S1.no_result")
    if who.in_submission:
        yield from map(_report_left_by_tools, who.left_by_tools)
        yield from check_places(who)
    for system in sorted({result.system for result in who.results if result.system}):
        yield from _check_system(who, system)
    for result in who.results:
        if result.system is not None:
            yield from _check_result_name(result)
        yield from _check_result_files(result, who.in_submission)


def report_stray(path: Path) -> Finding:
    """Report what lies beside the folders of submitters and belongs to none of them (S1)."""
    return breach(path, None, "S1.stray", name=format_value(path.name))


def _report_left_by_tools(path: Path) -> Finding:
    """Report a folder that `cepheid run` or `cepheid leaderboard` wrote for its user alone."""
    return breach(path, None, "S1.left_by_tools", name=path.name)


def _check_system(who: Submitter, system: str) -> Iterator[Finding]:
    folder = who.path / "results" / system
    why = explain_name(system)
    if why:
        yield breach(folder, None, "S1.system_name", why=why, system=format_value(system))
    elif system not in who.systems:
        yield breach(
            folder,
            None,
            "S1.no_description",
            guess=did_you_mean(system, who.systems),
            system=system,
        )


def _check_result_name(result: ResultFolder) -> Iterator[Finding]:
    parts = result.parts
    if parts is None:
        yield breach(result, None, "S1.result_name", result=format_value(result.path.name))
        return
    benchmark, scale, division = parts
    benchmarks = definition.names()
    known: tuple[str, ...]
    if benchmark not in benchmarks:
        what, word, known = "benchmark", benchmark, benchmarks
    elif scale not in definition.scales(benchmark):
        what, word, known = "scale", scale, definition.scales(benchmark)
    elif division not in DIVISIONS:
        what, word, known = "division", division, DIVISIONS
    else:
        return
    yield breach(
        result,
        None,
        "S1.unknown_name",
        what=what,
        word=format_value(word),
        guess=did_you_mean(word, known),
        known=", ".join(known),
    )


def _check_result_files(result: ResultFolder, in_submission: bool) -> Iterator[Finding]:
    if not result.runs:
        yield breach(result, None, "S1.no_log", case="submitted" if in_submission else "")
    for path in result.unexpected:
        if path.name in LEFT_BY_TOOLS:
            if in_submission:
                yield _report_left_by_tools(path)
            continue
        if is_like_log(path):
            case = "folder" if LOG_NAME.fullmatch(path.name) else "like_log"
        else:
            case = "submitted" if in_submission else ""
        yield breach(path, None, "S1.unexpected", case=case, name=format_value(path.name))
    if result.unfinished:
        names = ", ".join(escape(path.name) for path in result.unfinished)
        yield breach(
            result, None, "S1.unfinished", case="submitted" if in_submission else "", names=names
        )
    if result.interrupted:
        names = ", ".join(escape(path.name) for path in result.interrupted[:5])
        yield breach(result, None, "S1.interrupted", names=names)


@rule("S2", Needs.SUBMITTER)
def check_system_descriptions(who: Submitter) -> Iterator[Finding]:
    """Check that each description is valid and names its file and submitter (S2)."""
    used = {result.system for result in who.results}
    for name, system in who.systems.items():
        if name in used or who.in_submission:
            yield from _check_description(system, who.name)
        if who.in_submission:
            yield from _check_unfilled(system)


def _check_description(system: SystemFile, submitter: str | None) -> Iterator[Finding]:
    if system.content is None:
        yield breach(system, None, "S2.unreadable", problem=escape(system.problem))
        return
    problems = list(_check_schema(system)) or list(check_machine(system))
    yield from problems[:PROBLEMS_PER_DESCRIPTION_MAX]
    named = system.text("system")
    if named is not None and named != system.name:
        yield breach(
            system, None, "S2.system", name=format_value(system.name), system=format_value(named)
        )
    by = system.text("submitter")
    why = explain_name(by) if by and by != submitter else ""  # else S1 reports the folder
    if why:
        yield breach(system, None, "S2.submitter_name", why=why, submitter=format_value(by))
    elif by is not None and submitter is not None and by != submitter:
        yield breach(
            system, None, "S2.submitter", folder=format_value(submitter), submitter=format_value(by)
        )


def _check_unfilled(system: SystemFile) -> Iterator[Finding]:
    for key, what in find_unfilled(system.content or {}):
        yield breach(system, None, "S2.unfilled", key=escape(key)[:100], what=escape(what)[:200])


def _check_schema(system: SystemFile) -> Iterator[Finding]:
    import jsonschema  # imported here, because a single log is checked without it

    path = SCHEMAS / "system.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    content = dict(system.content or {})
    unknown = [key for key in content if key not in schema["properties"]]
    missing = [key for key in schema["required"] if key not in content]
    for key in unknown:
        guess = did_you_mean(key[:100], missing or schema["properties"])
        yield breach(
            system, None, "S2.unknown_field", key=format_value(key), guess=guess, schema=path.name
        )
    if missing:
        yield breach(system, None, "S2.missing_field", fields=", ".join(missing))
    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(content):
        if error.validator in ("required", "additionalProperties") and not error.path:
            continue  # reported above
        yield breach(
            system,
            None,
            "S2.value",
            key=escape(".".join(map(str, error.path))[:100]),
            allowed=_describe_schema(error.schema),
            value=format_value(error.instance),
            schema=path.name,
        )


def _describe_schema(schema: object) -> str:
    """Describe the part of a schema that a value breaks: ``type: integer, minimum: 1``."""
    if not isinstance(schema, dict):
        return ""
    parts = (f"{key}: {json.dumps(value)}" for key, value in schema.items())
    return ", ".join(parts).replace('"', "")
