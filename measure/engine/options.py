"""The options of studies: what argparse wants to know of them, and which numbers are refused."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.rules.errors import UserError

LARGEST_NUMBER = 10**7


@dataclass(frozen=True)
class Option:
    """An option of the command line; ``about`` is what argparse wants to know of it.

    Numbers below ``least`` or above ``most`` are refused; ``why`` is the reason, if it needs one.
    Of the options with the same ``group`` a user gives one at most.
    """

    flag: str
    about: Mapping[str, Any]
    least: float = -math.inf
    most: float = math.inf
    why: str = ""
    group: str = ""

    def refuse(self, options: argparse.Namespace) -> None:
        """Raise UserError where a given number lies outside of the bounds."""
        name = self.about.get("dest", self.flag.lstrip("-").replace("-", "_"))
        value = getattr(options, name)
        numbers = value if isinstance(value, list | tuple) else [value]
        if self.least == -math.inf or None in numbers:
            return
        if not all(self.least <= number <= self.most for number in numbers):
            ends = "or more" if self.most == math.inf else f"to {self.most:,g}"
            given = " ".join(map(str, numbers))
            because = f", {self.why}" if self.why else ""
            raise UserError(f"{self.flag} {given}: expected {self.least:g} {ends}{because}")


def offer_benchmark(which: str = "which benchmark") -> tuple[Option, Option]:
    """Return the options that name a benchmark and its scale, by default mini."""
    return (
        Option("benchmark", {"help": which}),
        Option("--scale", {"default": "mini", "help": "mini (default) or full"}),
    )


def offer_settings(explanation: str = "as for `cepheid run`") -> Option:
    """Return ``--set KEY=VALUE``, whose texts ``cepheid.reference.run.config.configure`` reads."""
    return Option(
        "--set",
        {"action": "append", "default": [], "metavar": "KEY=VALUE", "dest": "overrides",
         "help": explanation},
    )  # fmt: skip


def offer_numbers(
    flag: str, about: Mapping[str, Any], example: str, most: int = LARGEST_NUMBER, group: str = ""
) -> Option:
    """Return an option for numbers above 0 with commas between them: each once, in order."""

    def parse(text: str) -> tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
            raise UserError(
                f"{flag} {text}: expected numbers up to {most:,} with commas between them, "
                f"e.g. {example}"
            )
        return tuple(sorted({int(part) for part in parts}))

    return Option(flag, {"type": parse, **about}, group=group)


def offer_rounds(usual: int) -> Option:
    """Return ``--rounds N``, how often each side has its turn."""
    about = {"type": int, "default": usual, "metavar": "N"}
    return Option(
        "--rounds",
        {**about, "help": f"turns of each side (default: {usual})"},
        least=3,
        why="for a spread",
    )


def offer_seeds(help: str, usual: Sequence[int] | None) -> Option:
    """Return ``--seeds N …``."""
    about = {"type": int, "nargs": "+", "metavar": "N", "default": usual}
    return Option("--seeds", {**about, "help": help})


def offer_folder(what: str) -> Option:
    """Return ``--output DIR`` for what a study of ``what`` records (``Request.find_folder``)."""
    usual = f"results/{what}-<benchmark>-<scale>"
    text = f"where to keep the measurements (default: {usual})"
    return Option("--output", {"type": Path, "metavar": "DIR", "help": text})


DATA = Option(
    "--data",
    {"type": Path, "metavar": "DIR",
     "help": "where datasets are kept and prepared (default: $CEPHEID_DATA, else data/)"},
)  # fmt: skip
FIGURE = Option("--figure", {"type": Path, "metavar": "FILE.png", "help": "draw a figure too"})
FIGURES = Option("--figures", {"type": Path, "metavar": "DIR", "help": "draw figures there"})
FILE = Option(
    "--output", {"type": Path, "metavar": "FILE", "help": "write all measurements as JSON"}
)
