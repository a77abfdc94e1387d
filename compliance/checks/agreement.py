"""Compare what several files state of one quantity, as ``facts.py`` has it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.compliance.checks.facts import FACTS
from cepheid.compliance.finding import escape, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.manifest import find_line


@dataclass(frozen=True)
class JsonSource:
    """A JSON object and the file that it comes from."""

    path: Path
    content: Mapping[str, Any]

    def read(self, names: tuple[str, ...]) -> object:
        """Return the value that names lead to, or None."""
        return _follow(self.content, names)

    def find_line(self, names: tuple[str, ...]) -> int | None:
        """Return the line on which the last of the names stands."""
        return find_line(self.path, names)


@dataclass(frozen=True)
class LogSource:
    """A run log. Its ``number`` is that of its name."""

    run: RunLog

    @property
    def path(self) -> Path:
        """The log."""
        return self.run.path

    def read(self, names: tuple[str, ...]) -> object:
        """Return the value that names lead to, or None."""
        if names == ("number",):
            return self.run.index
        event = self.run.first(names[0])
        if event is None or len(names) == 1:
            return event and event.value
        return _follow(event.value if isinstance(event.value, dict) else event.metadata, names[1:])

    def find_line(self, names: tuple[str, ...]) -> int | None:
        """Return the line of the event."""
        event = self.run.first(names[0])
        return event.line if event else None


Source = JsonSource | LogSource


def _follow(content: object, names: tuple[str, ...]) -> object:
    for name in names:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


@dataclass(frozen=True)
class Key:
    """Where a fact stands, such as ``log.implementation.ranks``."""

    source: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Key":
        """Return the key of a text in the table."""
        source, _, names = text.partition(".")
        return cls(source, tuple(names.split(".")))

    def name(self, entry: str) -> "Key":
        """Return the key of one entry, where this is that of any."""
        return Key(self.source, tuple(entry if it == "*" else it for it in self.names))

    def __str__(self) -> str:
        return ".".join(self.names)


_KEYS = [(fact, [*map(Key.parse, (fact.first, *fact.others.split()))]) for fact in FACTS]


@dataclass(frozen=True)
class Disagreement:
    """What a key says that others contradict; ``others`` has what they say, and where."""

    key: Key
    line: int | None
    said: object
    expected: str
    others: str
    is_warning: bool


def find_disagreements(first: str, **sources: Source) -> Iterator[Disagreement]:
    """Yield what keys of the ``first`` source say that other keys contradict."""
    home = sources[first]
    for fact, keys in _KEYS:
        if keys[0].source != first or any(key.source not in sources for key in keys):
            continue
        entries: object = ("",)
        if keys[0].names[-1] == "*":
            entries = home.read(keys[0].names[:-1])
        for entry in entries if isinstance(entries, tuple | dict) else ():
            key, *others = (each.name(entry) for each in keys)
            said, *values = (sources[each.source].read(each.names) for each in (key, *others))
            expected = None if said is None else fact.relation(said, *values)
            if expected is not None:
                stated = (
                    _describe(other, value, sources[other.source], home)
                    for other, value in zip(others, values, strict=True)
                    if value is not None
                )
                line, texts = home.find_line(key.names), " and ".join(stated)
                yield Disagreement(key, line, said, expected, texts, fact.is_warning)


def _describe(key: Key, value: object, source: Source, home: Source) -> str:
    """Return what another key says and where, such as ``nodes 2 (box.json:4)``."""
    line = source.find_line(key.names)
    at = f":{line}" if line else ""
    where = f"line {line}" if source is home and line else escape(source.path.name) + at
    return f"{escape(str(key))[:100]} {format_value(value)} ({where})"
