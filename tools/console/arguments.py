"""Options that the command lines of several tools share."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cepheid.measure.engine.study import Study


def make_command_parser(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Make the parser of `cepheid COMMAND`; description and epilog keep their line breaks."""
    return argparse.ArgumentParser(
        prog=f"cepheid {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--data DIR``."""
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("CEPHEID_DATA", "data")),
        metavar="DIR",
        help="where datasets are kept and prepared (default: $CEPHEID_DATA, else data/)",
    )


def add_set_option(
    parser: argparse.ArgumentParser, explanation: str = "as for `cepheid run`"
) -> None:
    """Add ``--set KEY=VALUE``, whose texts ``cepheid.reference.run.config.configure`` reads."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help=explanation,
    )


def add_paths(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``PATH…``; ``what`` says what a path may be."""
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help=what)


def make_study_parser(study: "Study", command: str) -> argparse.ArgumentParser:
    """Return the parser of `cepheid COMMAND`."""
    parser = make_command_parser(command, study.help.description, study.help.examples)
    names = {option.group for option in study.options if option.group}
    groups = {name: parser.add_mutually_exclusive_group() for name in names}
    for option in study.options:
        place = groups[option.group] if option.group else parser
        place.add_argument(option.flag, **option.about)
    return parser
