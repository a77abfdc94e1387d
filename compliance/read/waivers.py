"""Waivers: exceptions that the organisers granted, in ``waivers.yaml`` of a submitter's folder.

A waiver turns the errors of one rule in one file or folder into warnings that name the person who
waived them and the reason. It hides nothing and expires on its day. A waiver without effect is a
finding itself (rule S9).
"""

import datetime
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from cepheid.compliance.finding import Finding, breach, escape, format_value
from cepheid.compliance.read.log.runlog import PARTIAL
from cepheid.rules.documents import find_schema_problem
from cepheid.rules.rounds import Round

FILE_NAME = "waivers.yaml"
FILE_BYTES_MAX = 64 * 2**10
NESTING_MAX = 8
WAIVERS_MAX = 100


@dataclass(frozen=True)
class Waiver:
    """One exception, which stands on ``line`` of its file and holds until the end of ``until``.

    ``place`` is the file or folder that it covers, relative to the submitter's folder.
    """

    line: int
    rule: str
    place: PurePosixPath
    reason: str
    who: str
    until: datetime.date

    def covers(self, finding: Finding, root: Path) -> bool:
        """Return True for an error of the waiver's rule in its file, or in a file of its folder.

        A log that is still being written goes by the name that it will have.
        """
        place = Path(os.path.abspath(root / self.place))
        path = Path(os.path.abspath(finding.path))
        will_be = path.with_name(path.name.removesuffix(PARTIAL) or path.name)
        is_there = place in (path, will_be, *path.parents)
        return is_there and finding.is_error and finding.rule == self.rule


@dataclass(frozen=True)
class WaiverProblem:
    """A problem of the file of waivers, on a line of it or (None) as a whole."""

    line: int | None
    message: str
    got: str = ""


@dataclass(frozen=True)
class Waivers:
    """The waivers of one file that could be read, and the problems with the others."""

    path: Path
    waivers: tuple[Waiver, ...]
    problems: tuple[WaiverProblem, ...] = ()


def read(path: Path) -> Waivers:
    """Read a file of waivers within bounds; what is wrong with it is in ``problems``."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return _refuse(path, None, f"the file is larger than {FILE_BYTES_MAX // 2**10} KiB")
        text = data.decode("utf-8")
        problem = _find_unsafe(text)
        if problem is not None:
            return Waivers(path, (), (problem,))
        document = yaml.compose(text, Loader=yaml.BaseLoader)
    except OSError as error:
        return _refuse(path, None, f"the file cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        return _refuse(path, None, "the file is not UTF-8 text")
    except yaml.MarkedYAMLError as error:
        return _refuse(
            path, _find_line(error.problem_mark), f"the file is not YAML: {error.problem}"
        )
    except yaml.YAMLError as error:
        return _refuse(path, None, f"the file is not YAML: {str(error)[:100]}")
    return _read_document(path, document)


def _refuse(path: Path, line: int | None, message: str) -> Waivers:
    return Waivers(path, (), (WaiverProblem(line, message),))


def _find_line(mark: Any) -> int | None:
    """Return the line of a mark from 1; libyaml and PyYAML have a class of marks each."""
    return mark.line + 1 if mark is not None else None


def _find_unsafe(text: str) -> WaiverProblem | None:
    """Find YAML that grows when it is read, or that names types: neither is needed here."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        line = _find_line(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            return WaiverProblem(line, "anchors and aliases (& and *) are not allowed")
        if getattr(event, "tag", None):
            return WaiverProblem(line, "tags (!) are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > NESTING_MAX:
            return WaiverProblem(line, "the file is nested too deeply")
    return None


def _read_document(path: Path, document: yaml.Node | None) -> Waivers:
    """Read the waivers of a document of which every scalar is text."""
    problems: list[WaiverProblem] = []
    content = _make_plain(document, problems) if document is not None else None
    entries = content.get("waivers") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        problem = find_schema_problem(content, "waivers") or "the file holds no waivers"
        return Waivers(path, (), (*problems, WaiverProblem(1, problem)))
    assert isinstance(content, dict)
    unknown = [key for key in content if key != "waivers"]
    problems += [WaiverProblem(1, f"unknown field {format_value(key)}") for key in unknown]
    lines = _list_lines(document)
    if len(entries) > WAIVERS_MAX:
        message = f"the file holds more than {WAIVERS_MAX} waivers"
        return Waivers(path, (), (WaiverProblem(lines[WAIVERS_MAX], message),))
    waivers = []
    for line, entry in zip(lines, entries, strict=True):
        waiver = _read_waiver(line, entry)
        if isinstance(waiver, Waiver):
            waivers.append(waiver)
        else:
            problems.append(waiver)
    return Waivers(path, tuple(waivers), tuple(problems))


def _make_plain(node: yaml.Node, problems: list[WaiverProblem]) -> object:
    """Return a node as text, list and dict; a key that is there twice is a problem."""
    if isinstance(node, yaml.SequenceNode):
        return [_make_plain(item, problems) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        content: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = str(_make_plain(key_node, problems))
            if key in content:
                line = key_node.start_mark.line + 1
                problems.append(WaiverProblem(line, f"{format_value(key)} is there more than once"))
            content.setdefault(key, _make_plain(value_node, problems))
        return content
    return str(node.value)


def _list_lines(document: yaml.Node | None) -> list[int]:
    assert isinstance(document, yaml.MappingNode)
    entries = next(value for key, value in document.value if key.value == "waivers")
    return [entry.start_mark.line + 1 for entry in entries.value]


def _read_waiver(line: int, entry: object) -> Waiver | WaiverProblem:
    problem = find_schema_problem({"waivers": [entry]}, "waivers")
    if problem:
        return WaiverProblem(line, problem.removeprefix("waivers.0.").replace("waivers.0: ", ""))
    assert isinstance(entry, dict)
    place = PurePosixPath(entry["path"])
    leaves = place.is_absolute() or ".." in place.parts or not place.parts
    if leaves or any(character in entry["path"] for character in "\\\0"):
        message = "path is not a file or folder within the submitter's folder"
        return WaiverProblem(line, message, format_value(entry["path"]))
    try:
        until = datetime.date.fromisoformat(entry["until"])
    except ValueError:
        return WaiverProblem(
            line, "until is not a day of the calendar", format_value(entry["until"])
        )
    return Waiver(line, entry["rule"], place, entry["reason"], entry["who"], until)


def apply_waivers(
    findings: Sequence[Finding], waivers: Waivers | None, root: Path, judged_in: Round,
    today: datetime.date,
) -> list[Finding]:  # fmt: skip
    """Return the findings, with each error that a waiver covers today turned into a warning."""
    holding = _list_holding(waivers, judged_in, today)
    return [_apply(finding, holding, root) for finding in findings]


def _list_holding(waivers: Waivers | None, judged_in: Round, today: datetime.date) -> list[Waiver]:
    every = waivers.waivers if waivers else ()
    return [w for w in every if today <= w.until and _is_waivable(w.rule, judged_in)]


def _is_waivable(rule: str, judged_in: Round) -> bool:
    return rule in judged_in.rules and judged_in.rules[rule].waivable


def _apply(finding: Finding, holding: Sequence[Waiver], root: Path) -> Finding:
    waiver = next((waiver for waiver in holding if waiver.covers(finding, root)), None)
    if waiver is None:
        return finding
    by = f"waived by {escape(waiver.who)} until {waiver.until}: {escape(waiver.reason)}"
    return replace(finding, severity="warning", message=f"{finding.message} ({by})")


def find_ineffective(
    findings: Sequence[Finding], waivers: Waivers | None, root: Path, judged_in: Round,
    today: datetime.date,
) -> Iterator[Finding]:  # fmt: skip
    """Find the waivers that change none of the findings about a submitter.

    The finding is an error where the rule cannot be waived, and a warning where the waiver has
    expired or covers nothing.
    """
    if waivers is None or "S9" not in judged_in.rules:
        return
    for waiver in waivers.waivers:
        about = f"{waiver.rule} at {escape(str(waiver.place))}"
        if not _is_waivable(waiver.rule, judged_in):
            waivable = ", ".join(known.id for known in judged_in.rules.values() if known.waivable)
            finding = breach(
                waivers, waiver, "S9.not_waivable", rule=waiver.rule, waivable=waivable
            )
            yield replace(finding, severity=judged_in.rules["S9"].severity)
        elif waiver.until < today:
            yield breach(waivers, waiver, "S9.expired", about=about, until=str(waiver.until))
        elif not any(waiver.covers(finding, root) for finding in findings):
            yield breach(waivers, waiver, "S9.unused", about=about)
