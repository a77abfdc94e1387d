"""S1 and S2: the layout and the system descriptions of a submitter's folder."""

import json
from collections.abc import Iterator
from pathlib import Path

from cepheid.compliance.checks.definitions import DIVISIONS
from cepheid.compliance.checks.registry import Needs, make_finding, rule
from cepheid.compliance.checks.submission.machine import check_machine
from cepheid.compliance.checks.submission.places import check_places
from cepheid.compliance.finding import Finding, escape, format_value
from cepheid.compliance.read.package import (
    LEFT_BY_TOOLS,
    LOG_NAME,
    README,
    ResultFolder,
    Submitter,
    SystemFile,
    is_like_log,
)
from cepheid.rules import definition
from cepheid.rules.documents import SCHEMAS, find_unfilled
from cepheid.rules.errors import did_you_mean
from cepheid.rules.names import explain_name

PROBLEMS_PER_DESCRIPTION_MAX = 10


@rule("S1", Needs.SUBMITTER)
def check_layout(who: Submitter) -> Iterator[Finding]:
    """Check names and places of folders and files, and that systems have descriptions (S1)."""
    why = explain_name(who.name) if who.name is not None else ""
    if why:
        yield make_finding(
            who.path,
            None,
            "S1.submitter_name",
            f"the folder's name cannot be the name of a submitter: {why}",
            expected="submissions/<submitter>/",
            got=format_value(who.name),
            hint="rename the folder, and submitter in the descriptions; if submissions/ is what "
            "`cepheid run --output` wrote, move it all to submissions/<submitter>/",
        )
    if who.in_submission and not who.results:
        yield make_finding(
            who.path,
            None,
            "S1.no_result",
            "the submission holds no result",
            expected="results/<system>/<benchmark>-<scale>-<division>/result_0.txt …",
            hint="copy what `cepheid run --output` left, with results/ and systems/",
        )
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
    return make_finding(
        path,
        None,
        "S1.stray",
        "this lies in submissions/, but it is no submitter's folder",
        expected=f"folders of submitters whose names differ not only in case, and a {README}",
        got=format_value(path.name),
        hint="move a log to submissions/<submitter>/results/<system>/<result>/; remove the rest",
    )


def _report_left_by_tools(path: Path) -> Finding:
    """Report a folder that `cepheid run` or `cepheid leaderboard` wrote for its user alone."""
    return make_finding(
        path,
        None,
        "S1.left_by_tools",
        f"{path.name}/ does not belong in a submission",
        expected="results/, systems/, benchmarks/ and manifest.json",
        hint="remove it from the submission; `cepheid run` and `cepheid leaderboard` wrote it "
        "for you alone",
    )


def _check_system(who: Submitter, system: str) -> Iterator[Finding]:
    folder = who.path / "results" / system
    why = explain_name(system)
    if why:
        yield make_finding(
            folder,
            None,
            "S1.system_name",
            f"the folder's name cannot be the name of a system: {why}",
            expected="results/<system>/",
            got=format_value(system),
            hint="rename the folder and the description, and log the new name",
        )
    elif system not in who.systems:
        yield make_finding(
            folder,
            None,
            "S1.no_description",
            f"the system has no description{did_you_mean(system, who.systems)}",
            expected=f"systems/{system}.json beside results",
            hint="write it as rules/schemas/system.schema.json says, or copy it from `cepheid run`",
        )


def _check_result_name(result: ResultFolder) -> Iterator[Finding]:
    parts = result.parts
    if parts is None:
        yield make_finding(
            result.path,
            None,
            "S1.result_name",
            "the folder's name does not give benchmark, scale and division",
            expected="<benchmark>-<scale>-<division>, for example galaxy_shape-mini-closed",
            got=format_value(result.path.name),
            hint="rename the folder",
        )
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
    yield make_finding(
        result.path,
        None,
        "S1.unknown_name",
        f"no {what} {format_value(word)}{did_you_mean(word, known)}",
        expected=f"one of {', '.join(known)}",
        hint="rename the folder to <benchmark>-<scale>-<division>",
    )


def _check_result_files(result: ResultFolder, in_submission: bool) -> Iterator[Finding]:
    if not result.runs:
        yield make_finding(
            result.path,
            None,
            "S1.no_log",
            "the result holds no run log",
            expected="result_0.txt, result_1.txt …",
            hint="run the benchmark, or remove the folder",
            severity="error" if in_submission else "note",
        )
    for path in result.unexpected:
        if path.name in LEFT_BY_TOOLS:
            if in_submission:
                yield _report_left_by_tools(path)
            continue
        is_log = is_like_log(path)
        named = "this is not the name of a run log" if is_log else "this does not belong here"
        yield make_finding(
            path,
            None,
            "S1.unexpected",
            "this is a folder, not a run log" if LOG_NAME.fullmatch(path.name) else named,
            expected="result_0.txt, result_1.txt …" if is_log else "run logs only",
            got=format_value(path.name),
            hint="rename it to result_<k>.txt with its number k from 0, or move it away",
            severity="error" if in_submission or is_log else "note",
        )
    if result.unfinished:
        names = ", ".join(escape(path.name) for path in result.unfinished)
        yield make_finding(
            result.path,
            None,
            "S1.unfinished",
            f"not checked, because still being written or left by a killed run: {names}",
            severity="error" if in_submission else "note",
            hint="wait for the run, or make it again as the others were made",
        )
    if result.interrupted:
        names = ", ".join(escape(path.name) for path in result.interrupted[:5])
        yield make_finding(
            result.path,
            None,
            "S1.interrupted",
            f"interrupted runs are not scored: {names}",
            severity="note",
        )


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
        yield make_finding(
            system.path,
            None,
            "S2.unreadable",
            f"the description {escape(system.problem)}",
            hint="write it as rules/schemas/system.schema.json says, and let others read it",
        )
        return
    problems = list(_check_schema(system)) or list(check_machine(system))
    yield from problems[:PROBLEMS_PER_DESCRIPTION_MAX]
    named = system.text("system")
    if named is not None and named != system.name:
        yield make_finding(
            system.path,
            None,
            "S2.system",
            "system is not the file's name",
            expected=format_value(system.name),
            got=format_value(named),
            hint="give the file, the folder under results/ and system the same name",
        )
    by = system.text("submitter")
    why = explain_name(by) if by and by != submitter else ""  # else S1 reports the folder
    if why:
        yield make_finding(
            system.path,
            None,
            "S2.submitter_name",
            f"submitter cannot have this value: {why}",
            got=format_value(by),
            hint="choose another name; the logs must have the same",
        )
    elif by is not None and submitter is not None and by != submitter:
        yield make_finding(
            system.path,
            None,
            "S2.submitter",
            "submitter is not the name of the folder under submissions/",
            expected=format_value(submitter),
            got=format_value(by),
            hint="rename the folder or correct the description; the logs must have the same name",
        )


def _check_unfilled(system: SystemFile) -> Iterator[Finding]:
    for key, what in find_unfilled(system.content or {}):
        yield make_finding(
            system.path,
            None,
            "S2.unfilled",
            f"{escape(key)[:100]} is still to be filled in",
            expected=escape(what)[:200],
            hint="replace the whole text, or leave the field out if it is not required",
        )


def _check_schema(system: SystemFile) -> Iterator[Finding]:
    import jsonschema  # imported here, because a single log is checked without it

    path = SCHEMAS / "system.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    content = dict(system.content or {})
    unknown = [key for key in content if key not in schema["properties"]]
    missing = [key for key in schema["required"] if key not in content]
    for key in unknown:
        guess = did_you_mean(key[:100], missing or schema["properties"])
        yield make_finding(
            system.path,
            None,
            "S2.unknown_field",
            f"unknown field {format_value(key)}{guess}",
            expected=f"fields of {path.name}",
            hint='correct its name, or put it under "software" or "notes"',
        )
    if missing:
        yield make_finding(
            system.path,
            None,
            "S2.missing_field",
            f"the description lacks {', '.join(missing)}",
            expected="every required field",
            hint="describe the system completely enough to buy or build the same",
        )
    validator = jsonschema.Draft202012Validator(schema)
    for error in validator.iter_errors(content):
        if error.validator in ("required", "additionalProperties") and not error.path:
            continue  # reported above
        yield make_finding(
            system.path,
            None,
            "S2.value",
            f"{escape('.'.join(map(str, error.path))[:100])} has a value that is not allowed",
            expected=_describe_schema(error.schema),
            got=format_value(error.instance),
            hint=f"{path.name} says what each field holds",
        )


def _describe_schema(schema: object) -> str:
    """Describe the part of a schema that a value breaks: ``type: integer, minimum: 1``."""
    if not isinstance(schema, dict):
        return ""
    parts = (f"{key}: {json.dumps(value)}" for key, value in schema.items())
    return ", ".join(parts).replace('"', "")
