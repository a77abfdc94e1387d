"""Rounds: frozen versions of the rules. ``load(name)`` reads ``rounds/<name>.yaml``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import yaml

from rules.errors import UserError, did_you_mean

CURRENT = "v1.0"

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class RoundRule:
    """How one numbered rule applies in a round: integrity rules hold in every round."""

    id: str
    kind: Literal["integrity", "round"]
    severity: Severity


@dataclass(frozen=True)
class Round:
    """A round: its name, what it scores by, and the rules that are checked in it."""

    name: str
    title: str
    rules: Mapping[str, RoundRule]

    def __reduce__(self) -> tuple[Callable[[str], "Round"], tuple[str]]:
        return load, (self.name,)  # to another process it goes by its name


def names() -> tuple[str, ...]:
    """The rounds there are."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.yaml")))


@cache
def load(name: str = CURRENT) -> Round:
    """A round by its name. Raises UserError for an unknown one."""
    if name not in names():
        raise UserError(
            f'no round "{name}"{did_you_mean(name, names())} (all: {", ".join(names())})'
        )
    document = yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))
    rules = {
        rule_id: RoundRule(rule_id, entry["kind"], entry.get("severity", "error"))
        for rule_id, entry in document["rules"].items()
    }
    return Round(document["name"], document["title"], MappingProxyType(rules))
