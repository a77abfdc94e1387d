"""What the organisers decided: ``submissions/decisions.yaml``, beside the submitters' folders.

No submitter can write there (S7), so that what the file says counts: waivers, decisions about
disputes, objections and withdrawals. Each kind of entry is a class in ``KINDS`` and a list of the
same name in ``rules/schemas/decisions.schema.json``; another kind needs nothing else here.
"""

import datetime
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from cepheid.compliance.finding import FileProblem, format_value
from cepheid.compliance.read.log.runlog import PARTIAL
from cepheid.rules.documents import find_schema_problem

FILE_NAME = "decisions.yaml"
FILE_BYTES_MAX = 256 * 2**10
NESTING_MAX = 8
ENTRIES_MAX = 100  # of one kind


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One entry, which stands on ``line`` of its file.

    ``path`` is what it is about: a submitter's folder or what lies in one, as a path in
    ``submissions``.
    """

    line: int
    path: PurePosixPath


@dataclass(frozen=True, kw_only=True)
class Waiver(Decision):
    """Errors of one rule that become warnings in a round that is due on ``until`` or before."""

    rule: str
    reason: str
    who: str
    until: datetime.date


@dataclass(frozen=True, kw_only=True)
class Ruling(Decision):
    """What somebody decided on a day, and the reason."""

    reason: str
    who: str
    on: datetime.date


@dataclass(frozen=True, kw_only=True)
class Dispute(Ruling):
    """Which of two equal results stands: ``path`` alone if the ``other`` is the copy, or both."""

    other: PurePosixPath
    verdict: str

    @property
    def lets_both_stand(self) -> bool:
        """True where the two results are not copies of each other."""
        return self.verdict == "both stand"


@dataclass(frozen=True, kw_only=True)
class Objection(Decision):
    """What one submitter says against a result of another, the answer and the decision (S11)."""

    rule: str
    evidence: str
    asked_for: str
    by: str
    on: datetime.date
    answer: str = ""
    verdict: str = "open"
    reason: str = ""
    who: str = ""


@dataclass(frozen=True, kw_only=True)
class Withdrawal(Ruling):
    """A result that its submitter or the organisers withdrew, with the reason (S8)."""


@dataclass(frozen=True, kw_only=True)
class Receipt(Decision):
    """The day on which a submission arrived, and the SHA-256 of its manifest (S10)."""

    on: datetime.date
    manifest: str = ""


@dataclass(frozen=True, kw_only=True)
class NotConfirmed(Ruling):
    """A result of a preview system that the next round did not confirm (S13)."""


@dataclass(frozen=True, kw_only=True)
class Reproduction(Ruling):
    """A result that the organisers ran again and found confirmed; ``reason`` says how (S9)."""


KINDS: Mapping[str, type[Decision]] = {
    "waivers": Waiver,
    "disputes": Dispute,
    "objections": Objection,
    "withdrawals": Withdrawal,
    "receipts": Receipt,
    "not_confirmed": NotConfirmed,
    "reproduced": Reproduction,
}


Kind = TypeVar("Kind", bound=Decision)


@dataclass(frozen=True)
class Decisions:
    """The entries of one file that could be read, and the problems with the others."""

    path: Path
    entries: Mapping[str, tuple[Decision, ...]] = field(default_factory=dict)
    problems: tuple[FileProblem, ...] = ()

    def list_all(self, kind: type[Kind]) -> tuple[Kind, ...]:
        """Return the entries of one kind in the order of the file."""
        every = (entry for entries in self.entries.values() for entry in entries)
        return tuple(entry for entry in every if isinstance(entry, kind))

    def is_within(self, place: PurePosixPath, path: Path) -> bool:
        """Return True where ``place`` is ``path`` or lies in it."""
        covered = Path(os.path.abspath(self.path.parent / place))
        return Path(os.path.abspath(path)) in (covered, *covered.parents)

    def concerns(self, place: PurePosixPath, path: Path) -> bool:
        """Return True for a file or folder that is ``place`` or lies in it.

        A log that is still being written goes by the name that it will have.
        """
        covered = Path(os.path.abspath(self.path.parent / place))
        given = Path(os.path.abspath(path))
        will_be = given.with_name(given.name.removesuffix(PARTIAL) or given.name)
        return covered in (given, will_be, *given.parents)


def read(path: Path) -> Decisions:
    """Read a file of decisions within bounds; what is wrong with it is in ``problems``."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            return _refuse(path, None, f"the file is larger than {FILE_BYTES_MAX // 2**10} KiB")
        text = data.decode("utf-8")
        problem = _find_unsafe(text)
        if problem is not None:
            return Decisions(path, problems=(problem,))
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


def _refuse(path: Path, line: int | None, message: str) -> Decisions:
    return Decisions(path, problems=(FileProblem(line, message),))


def _find_line(mark: Any) -> int | None:
    """Return the line of a mark from 1; libyaml and PyYAML have a class of marks each."""
    return mark.line + 1 if mark is not None else None


def _find_unsafe(text: str) -> FileProblem | None:
    """Find YAML that grows when it is read, or that names types: neither is needed here."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        line = _find_line(event.start_mark)
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            return FileProblem(line, "anchors and aliases (& and *) are not allowed")
        if getattr(event, "tag", None):
            return FileProblem(line, "tags (!) are not allowed")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > NESTING_MAX:
            return FileProblem(line, "the file is nested too deeply")
    return None


def _read_document(path: Path, document: yaml.Node | None) -> Decisions:
    """Read the entries of a document of which every scalar is text."""
    problems: list[FileProblem] = []
    content = _make_plain(document, problems) if document is not None else None
    if not (isinstance(content, dict) and isinstance(document, yaml.MappingNode)):
        what = find_schema_problem(content, "decisions") or "the file holds no decisions"
        return Decisions(path, problems=(*problems, FileProblem(1, what)))
    nodes: dict[str, yaml.Node] = {}
    for key, node in document.value:
        nodes.setdefault(str(key.value), node)
    entries: dict[str, tuple[Decision, ...]] = {}
    for kind, listed in content.items():
        if kind not in KINDS:
            what = f"unknown kind {format_value(kind)} (all: {', '.join(KINDS)})"
            problems.append(FileProblem(1, what))
        elif not isinstance(listed, list):
            line = nodes[kind].start_mark.line + 1
            problems.append(FileProblem(line, f"{kind} is not a list of entries"))
        elif len(listed) > ENTRIES_MAX:
            what = f"the file holds more than {ENTRIES_MAX} {kind}"
            first = nodes[kind].value[ENTRIES_MAX]
            problems.append(FileProblem(first.start_mark.line + 1, what))
        else:
            lines = [node.start_mark.line + 1 for node in nodes[kind].value]
            entries[kind] = tuple(_read_entries(kind, zip(lines, listed, strict=True), problems))
    return Decisions(path, MappingProxyType(entries), tuple(problems))


def _make_plain(node: yaml.Node, problems: list[FileProblem]) -> object:
    """Return a node as text, list and dict; a key that is there twice is a problem."""
    if isinstance(node, yaml.SequenceNode):
        return [_make_plain(item, problems) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        content: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = str(_make_plain(key_node, problems))
            if key in content:
                line, what = key_node.start_mark.line + 1, f"{format_value(key)} is there"
                problems.append(FileProblem(line, f"{what} more than once"))
            content.setdefault(key, _make_plain(value_node, problems))
        return content
    return str(node.value)


def _read_entries(
    kind: str, listed: Iterator[tuple[int, object]], problems: list[FileProblem]
) -> Iterator[Decision]:
    for line, entry in listed:
        what = find_schema_problem({kind: [entry]}, "decisions")
        if what:
            shown = what.removeprefix(f"{kind}.0.").replace(f"{kind}.0: ", "")
            problems.append(FileProblem(line, shown))
            continue
        assert isinstance(entry, dict)
        types = {each.name: each.type for each in fields(KINDS[kind])}
        values: dict[str, Any] = {}
        wrong = None
        for name, text in entry.items():
            try:
                values[name] = READERS.get(types[name], str)(text)
            except ValueError as error:
                wrong = wrong or FileProblem(line, f"{name} is {error}", got=format_value(text))
        if wrong:
            problems.append(wrong)
        else:
            yield KINDS[kind](line=line, **values)


def _read_path(text: str) -> PurePosixPath:
    place = PurePosixPath(text)
    leaves = place.is_absolute() or ".." in place.parts or not place.parts
    if leaves or any(character in text for character in "\\\0"):
        raise ValueError("not a submitter's folder, nor a file or folder within one")
    return place


def _read_day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise ValueError("not a day of the calendar") from None


READERS: Mapping[Any, Callable[[str], object]] = {
    PurePosixPath: _read_path,
    datetime.date: _read_day,
}
"""How the text of a field is read, by the type of the field; all others are text."""
