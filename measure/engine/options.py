"""The options of studies: what argparse wants to know of them, and which numbers are refused."""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cepheid.measure.engine.noise import INPUTS, REAL
from cepheid.reference.machine.accelerators import DEVICE_HELP, MODULE_HELP
from cepheid.rules.errors import UserError

LARGEST_NUMBER = 10**7


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


def offer_benchmark(which: str = "which benchmark") -> tuple[Option, Option]:
    """Return the options that name a benchmark and its scale, by default mini."""
    return Option("benchmark", which), Option("--scale", "mini (default) or full", default="mini")


def offer_settings(explanation: str = "as for `cepheid run`") -> Option:
    """Return ``--set KEY=VALUE``, whose texts ``cepheid.reference.run.config.configure`` reads."""
    more = {"action": "append", "dest": "overrides"}
    return Option("--set KEY=VALUE", explanation, default=[], more=more)


def offer_numbers(
    flag: str, help: str, example: str, default: Sequence[int] | None = None,
    most: int = LARGEST_NUMBER, group: str = "",
) -> Option:  # fmt: skip
    """Return an option for numbers above 0 with commas between them: each once, in order."""

    def parse(text: str) -> tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
            raise UserError(
                f"{flag.partition(' ')[0]} {text}: expected numbers up to {most:,} with commas "
                f"between them, e.g. {example}"
            )
        return tuple(sorted({int(part) for part in parts}))

    return Option(flag, help, parse, default, group=group)


def offer_rounds(usual: int) -> Option:
    """Return ``--rounds N``, how often each side has its turn."""
    text = f"turns of each side (default: {usual})"
    return Option("--rounds N", text, int, usual, least=3, why="for a spread")


def offer_seeds(help: str, usual: Sequence[int] | None) -> Option:
    """Return ``--seeds N …``."""
    return Option("--seeds N", help, int, usual, {"nargs": "+"})


def offer_folder(what: str) -> Option:
    """Return ``--output DIR`` for what a study of ``what`` records (``Request.find_folder``)."""
    usual = f"results/{what}-<benchmark>-<scale>"
    return Option("--output DIR", f"where to keep the measurements (default: {usual})", Path)


def offer_input(usual: str = REAL, note: str = "") -> Option:
    """Return ``--input``, what the steps of a study train on."""
    text = f"real data or synthetic ones{note}; synthetic needs no data set (default: {usual})"
    choices = (*INPUTS, *([usual] if usual not in INPUTS else []))
    return Option("--input", text, default=usual, more={"choices": choices})


DATA = Option(
    "--data DIR", "where datasets are kept and prepared (default: $CEPHEID_DATA, else data/)", Path
)
DEVICES = (Option("--device KIND", DEVICE_HELP), Option("--device-module FILE", MODULE_HELP, Path))
"""What a study computes on that runs a network; ``run_study`` takes note of them."""
FIGURE = Option("--figure FILE.png", "draw a figure too", Path)
FIGURES = Option("--figures DIR", "draw figures there", Path)
FILE = Option("--output FILE", "write all measurements as JSON", Path)
