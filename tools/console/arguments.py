"""The command lines of the tools, which ``commands/*.yaml`` declare, and those of studies."""

import argparse
import datetime
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cepheid.rules import definition, rounds
from cepheid.rules.documents import parse_yaml
from cepheid.rules.errors import did_you_mean
from cepheid.rules.layout import fill, wrap

if TYPE_CHECKING:
    from cepheid.measure.engine.study import Study

FOLDER = Path(__file__).parents[1] / "commands"  # a file for each command that is no study
KINDS: Mapping[str, Callable[[str], Any]] = {
    "path": Path, "whole": int, "number": float, "day": datetime.date.fromisoformat,
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """The command line of `cepheid NAME`; description and epilog fit the terminal."""

    name: str
    description: str
    epilog: str
    arguments: Mapping[str, Mapping[str, Any]]
    texts: Mapping[str, str]  # all that its file has, also what the command prints

    def make_parser(self) -> argparse.ArgumentParser:
        """Make the parser."""
        parser = make_command_parser(self.name, self.description, self.epilog)
        for name, about in self.arguments.items():
            parser.add_argument(name, **about)
        return parser

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse a command line, by default that of this process."""
        return self.make_parser().parse_args(argv)


def read_command(command: str, **facts: object) -> Command:
    """Read the command line of `cepheid COMMAND` from ``commands/<command>.yaml``.

    An argument has a ``kind`` of its value, or is a ``switch``; all else is argparse's. What
    several commands share is in ``shared.yaml``: a text beside its name is another help, a mapping
    changes other facts of it, too. ``facts`` stand for places such as ``{round}`` in the texts.
    """
    said, shared = (_read(each) for each in (command, "shared"))
    known = {"round": rounds.CURRENT, "data": os.environ.get("CEPHEID_DATA", "data"), **facts}
    arguments = {}
    for name, own in said["arguments"].items():
        form = {**shared.get(name, {}), **({"help": own} if isinstance(own, str) else own or {})}
        form = {k: v.format_map(known) if isinstance(v, str) else v for k, v in form.items()}
        kind = form.pop("kind", "")
        of_kind = {"action": "store_true"} if kind == "switch" else {"type": KINDS.get(kind, str)}
        is_switch = str(form.get("action")).startswith("store_")
        arguments[name] = form if is_switch else {**of_kind, **form}
    description, epilog = (said[text].format_map(known) for text in ("description", "epilog"))
    return Command(command, description, epilog, arguments, said)


def read_commands(program: str, package: str) -> Mapping[str, tuple[str, str]]:
    """Read ``commands/<program>.yaml``: each command's module in ``package``, and what it does."""
    return {name: (f"{package}.{module}", what) for name, (module, what) in _read(program).items()}


def _read(name: str) -> Mapping[str, Any]:
    return dict(parse_yaml((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the option that was meant."""

    words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Note the words of the command line for the suggestions."""
        self.words = sys.argv[1:] if args is None else args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and exit with code 2."""
        guess = self._suggest(message)
        self.exit(2, wrap(f"cepheid: {message}{guess} (all: `{self.prog} --help`)\n"))

    def _suggest(self, message: str) -> str:
        """Return the option, the setting or the choice that is meant, or where it is set."""
        if choice := re.search(r"invalid choice: (\S+) \(choose from (.+)\)", message):
            return did_you_mean(choice[1].strip("'\""), re.findall(r"[\w.-]+", choice[2]))
        found = re.match(r"unrecognized arguments: (?:= )?(\S+)", message)
        words = ["", "", *(word for word in self.words if word != "="), ""]
        if not found or found[1] not in words:  # such as a word with spaces
            return ""
        at = words.index(found[1])
        name, _, value = found[1].partition("=")
        if name in definition.names():
            return f"; a benchmark stands alone: `{self.prog} {name}`"
        options: list[str] = [*self._option_string_actions]
        settings = list_keys(self.words) if "--set" in options else ()
        if words[at - 2] == "--set":  # the value after a space
            name, value, options = words[at - 1], found[1], []
        elif not name.startswith("-"):
            name, options = name if value else "", []
        value = value or words[at + 1]
        guess = did_you_mean(name, [*options, *settings])
        if self.prog == "cepheid run":
            from cepheid.reference.run.config import suggest

            guess = suggest(name, options, settings)
        value = "…" if value[:1] in ("", "-") else value
        return re.sub(r'(?<=mean )"(\w+)"', lambda key: f"`--set {key[1]}={value}`", guess)


def list_keys(words: Sequence[str]) -> Sequence[str]:
    """Return the settings of the benchmarks that a command line names, or of all of them."""
    from cepheid.reference.run.execution import list_choices

    names = [name for name in definition.names() if name in words] or definition.names()
    scale = "full" if "full" in words else "mini"
    keys: list[str] = []
    for name in names:
        each = definition.load(name, scale)
        keys += [*each.hyperparameters, *each.variants, *list_choices(each, "torch")]
        keys += ["preset"] if each.presets else []
    return list(dict.fromkeys(keys))


def make_command_parser(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Make the parser of `cepheid COMMAND`; description and epilog fit the terminal."""
    name, form = f"cepheid {command}", argparse.RawDescriptionHelpFormatter
    about, after = fill(description), fill(epilog)
    return _Parser(prog=name, description=about, epilog=after, formatter_class=form)


def make_study_parser(study: "Study", command: str) -> argparse.ArgumentParser:
    """Return the parser of `cepheid COMMAND`."""
    parser = make_command_parser(command, study.description, study.examples)
    names = {option.group for option in study.options if option.group}
    groups = {name: parser.add_mutually_exclusive_group() for name in names}
    for option in study.options:
        option.add_to(groups[option.group] if option.group else parser)
    return parser
