"""The options of studies: what argparse wants to know of them, and which numbers are refused."""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from cepheid.reference.machine.accelerators import DEVICE_HELP, MODULE_HELP
from cepheid.rules.documents import parse_yaml
from cepheid.rules.errors import UserError

LARGEST_NUMBER = 10**7
FOLDER = Path(__file__).parents[1] / "commands"  # a file for each study


@dataclass(frozen=True)
class Option:
    """An option of the command line: its flag and the name of its value, such as ``--rounds N``.

    ``kind`` makes a value of a text; bool is a switch. ``more`` is for argparse.
    Numbers below ``least`` or above ``most`` are refused; ``why`` is the reason, if it needs one.
    Of the options with the same ``group`` a user gives one at most; one that
    ``needs`` another option is refused without it.
    """

    flag: str
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    more: Mapping[str, Any] = field(default_factory=dict)
    least: float = -math.inf
    most: float = math.inf
    why: str = ""
    group: str = ""
    needs: str = ""

    @property
    def name(self) -> str:
        """The attribute in which argparse keeps the value."""
        flag = self.flag.partition(" ")[0].lstrip("-")
        return str(self.more.get("dest", flag.replace("-", "_")))

    def add_to(self, parser: Any) -> None:
        """Add it to a parser of argparse, or to a group of one."""
        flag, _, value = self.flag.partition(" ")
        if self.kind is bool:
            parser.add_argument(flag, action="store_true", help=self.help)
            return
        about = {"metavar": value} if value else {}
        parser.add_argument(
            flag, type=self.kind, default=self.default, help=self.help, **about, **self.more
        )

    def refuse(self, options: argparse.Namespace) -> None:
        """Raise UserError for a number outside of the bounds, or without what the option needs."""
        flag, value = self.flag.partition(" ")[0], getattr(options, self.name)
        if self.needs and value is not None and not getattr(options, self.needs.lstrip("-")):
            raise UserError(f"{flag}: it needs {self.needs}; fix: add {self.needs}")
        numbers = value if isinstance(value, list | tuple) else [value]
        if self.least == -math.inf or None in numbers:
            return
        if not all(self.least <= number <= self.most for number in numbers):
            ends = "or more" if self.most == math.inf else f"to {self.most:,g}"
            given = " ".join(map(str, numbers))
            because = f", {self.why}" if self.why else ""
            raise UserError(f"{flag} {given}: expected {self.least:g} {ends}{because}")


def read_command(name: str, **facts: str) -> dict[str, Any]:
    """Return what ``commands/<name>.yaml`` declares of a study: description, options, examples.

    An option stands below its flag and value, such as ``--rounds N``, and has what ``Option`` has,
    a ``kind`` by its name, and what argparse wants to know. What several studies offer is in
    ``shared.yaml``: a text beside its flag is another help, a mapping changes other facts, too.
    ``facts`` stand for places such as ``{links}`` in the texts.
    """
    files = (FOLDER / f"{each}.yaml" for each in (name, "shared"))
    said, shared = (parse_yaml(file.read_text(encoding="utf-8")) for file in files)
    texts = {key: _fill_in(said[key], facts) for key in ("description", "examples")}
    return {**texts, "options": declare(said["options"], shared)}


def declare(said: Mapping[str, Any], shared: Mapping[str, Any] | None = None) -> tuple[Option, ...]:
    """Return the options of a mapping, as a file of ``commands`` has it."""
    options = []
    for flag, own in said.items():
        form: dict[str, Any] = {}
        for each in ((shared or {}).get(flag), own):
            form |= {"help": each} if isinstance(each, str) else each or {}
        form["help"] = _fill_in(form["help"], {"device": DEVICE_HELP, "module": MODULE_HELP})
        of_argparse = form.keys() & {"action", "choices", "dest", "nargs"}
        more = {key: form.pop(key) for key in of_argparse}
        kind: Callable[[str], Any] = KINDS.get(form.pop("kind", ""), str)
        if kind is parse_numbers:
            kind = partial(kind, flag=flag, example=form.pop("example"), most=form.get("most"))
        if default := form.get("default"):
            form["default"] = tuple(default) if isinstance(default, list) else default
        options.append(Option(flag, kind=kind, more=more, **form))
    return tuple(options)


def _fill_in(text: str, facts: Mapping[str, str]) -> str:
    for place, fact in facts.items():
        text = text.replace(f"{{{place}}}", fact)
    return text


def parse_numbers(
    text: str, flag: str = "", example: str = "", most: int | None = None
) -> tuple[int, ...]:
    """Return numbers above 0 with commas between them: each once, in order."""
    largest, parts = most or LARGEST_NUMBER, [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and 1 <= int(part) <= largest for part in parts):
        raise UserError(
            f"{flag.partition(' ')[0]} {text}: expected numbers up to {largest:,} with commas "
            f"between them, e.g. {example}"
        )
    return tuple(sorted({int(part) for part in parts}))


KINDS: Mapping[str, Callable[..., Any]] = {
    "number": float, "numbers": parse_numbers, "path": Path, "switch": bool, "whole": int,
}  # fmt: skip
