"""Completion of the command line by a shell: ``eval "$(register-python-argcomplete cepheid)"``.

The shell then starts `cepheid` with the variable _ARGCOMPLETE. Otherwise nothing of this is
imported, so that commands start as fast as without it.
"""

import argparse
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

NESTED = ("COMMANDS", "MEASUREMENTS")  # where a module has commands of its own

Commands = Mapping[str, tuple[str, str]]


def complete(commands: Commands) -> None:
    """Tell the shell what may follow on the line that it completes, and end the process."""
    import argcomplete

    words = os.environ.get("COMP_LINE", "").split()[1:]
    argcomplete.autocomplete(_make_parser(commands, words), always_complete_options="long")


def _make_parser(commands: Commands, words: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of commands; only the module of the one in ``words`` is imported."""
    parser = argparse.ArgumentParser(add_help=False)
    kinds = parser.add_subparsers()
    for name, (module, what) in commands.items():
        parents = [_import_parser(name, module, words[1:])] if words[:1] == [name] else []
        kinds.add_parser(name, parents=parents, help=what, add_help=False)
    return parser


def _import_parser(name: str, module: str, words: Sequence[str]) -> argparse.ArgumentParser:
    imported = importlib.import_module(module)
    for nested in NESTED:
        if commands := getattr(imported, nested, None):
            return _make_parser(commands, words)
    if hasattr(imported, "STUDY"):
        from cepheid.tools.console.arguments import make_study_parser

        parser = make_study_parser(imported.STUDY, name)
    else:
        parser = imported.COMMAND.make_parser()
    for action in parser._actions:
        for option in (action.dest, *action.option_strings):
            if option in VALUES:
                action.completer = VALUES[option]  # type: ignore[attr-defined]
    return parser


def _list_benchmarks(**about: Any) -> Sequence[str]:
    from cepheid.rules import definition

    return definition.names()


def _list_settings(parsed_args: argparse.Namespace, **about: Any) -> Iterator[str]:
    """Yield the settings of the benchmark that is on the line, as ``key=``."""
    from cepheid.tools.console.arguments import list_keys

    scale = getattr(parsed_args, "scale", "mini")
    yield from (f"{key}=" for key in list_keys((parsed_args.benchmark, scale)))


VALUES: Mapping[str, Callable[..., Any]] = {
    "benchmark": _list_benchmarks,
    "benchmarks": _list_benchmarks,
    "--set": _list_settings,
    "--scale": lambda **about: ("mini", "full"),
    "--division": lambda **about: ("closed", "open"),
    "--framework": lambda **about: ("torch", "keras"),
}
"""What may stand for an argument, by its name."""
