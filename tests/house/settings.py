"""What ``house.toml`` says about rooms, wings, known exceptions and ceilings."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ELSEWHERE = "elsewhere"  # the key of what lies in no room: documents, continuous integration


@dataclass(frozen=True)
class Settings:
    """The contents of ``house.toml``; that file describes every field."""

    prefix: str
    tests: str
    not_ours: frozenset[str]
    rooms: Mapping[str, tuple[str, ...]]
    wings: Mapping[str, tuple[str, ...]]
    known: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, tuple[str, ...]]
    limits: Mapping[str, int]
    entries: str
    definition: str
    libraries: tuple[str, ...]
    ceilings: Mapping[str, Mapping[str, int]]


def parse_settings(text: str) -> Settings:
    """Return the settings of a ``house.toml`` with this text."""
    read = tomllib.loads(text)
    tasks = read["tasks"]
    ceilings = dict(read["ceilings"])
    for room, lines in ceilings.pop("lines", {}).items():
        ceilings[f"lines.{room}"] = lines
    return Settings(
        prefix=read["prefix"],
        tests=read["tests"],
        not_ours=frozenset(read["not_ours"]),
        rooms=_freeze(read["rooms"]),
        wings=_freeze(read["wings"]),
        known=_freeze(read["known"]),
        kinds=_freeze(read["kinds"]),
        limits=read["limits"],
        entries=tasks["entries"],
        definition=tasks["definition"],
        libraries=tuple(tasks["libraries"]),
        ceilings=ceilings,
    )


def read_settings(path: Path) -> Settings:
    """Return the settings of the file ``path``."""
    return parse_settings(path.read_text(encoding="utf-8"))


def _freeze(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(values) for key, values in table.items()}
