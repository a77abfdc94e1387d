"""`cepheid`: one console command whose sub-commands are the other files of this folder."""

import os
import sys
from collections.abc import Sequence

from cepheid.tools.console.arguments import read_commands
from cepheid.tools.console.program import (
    EXIT_FINE,
    list_commands,
    read_version,
    run_command,
    run_tool,
)

COMMANDS = read_commands("cepheid", "cepheid")
ABOUT = f"""\
usage: cepheid COMMAND …        (cepheid COMMAND --help explains each)
       cepheid --version

Training benchmarks with rules, logs that can be checked, and results to trust.

{list_commands(COMMANDS)}

first steps:
  cepheid run galaxy_shape --scale mini --runs 1 --output results/first
  cepheid summary results/first

exit codes: 0 fine; 1 findings, or a run that missed its target; 2 wrong use"""


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a sub-command; only its module is imported."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in ("--version", "version"):
        print(_describe_version())
        return EXIT_FINE
    return run_command("cepheid", "command", COMMANDS, ABOUT, arguments)


def console() -> None:
    """Entry point of the installed command `cepheid`."""
    if sys.platform == "win32":
        sys.exit("cepheid: Windows is not supported; fix: run it in WSL 2, a Linux in Windows")
    if "_ARGCOMPLETE" in os.environ:  # a shell completes a line
        from cepheid.tools.console.completion import complete

        complete(COMMANDS)
    run_tool(main)


def _describe_version() -> str:
    """Return name and version, that of Python, and the current round."""
    import platform  # here: other commands need none of it

    from cepheid.rules.rounds import CURRENT

    return f"cepheid {read_version()}, Python {platform.python_version()}, round {CURRENT}"


if __name__ == "__main__":
    console()
