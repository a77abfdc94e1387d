"""`cepheid`: one console command whose sub-commands are the other files of this folder."""

import os
import sys
from collections.abc import Mapping, Sequence

from cepheid.tools.console.program import (
    EXIT_FINE,
    EXIT_WRONG_USE,
    list_commands,
    read_version,
    run_command,
    run_tool,
)

COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("cepheid.tools.run_benchmark", "run a benchmark and write its run logs to a folder"),
    "doctor": (
        "cepheid.tools.run.doctor",
        "say what is here, what is missing, and what takes how long",
    ),
    "check": ("cepheid.tools.check_compliance", "check run logs and submissions against the rules"),
    "summary": (
        "cepheid.tools.summarize_results",
        "print a row for each result: its time, or the reason for none",
    ),
    "leaderboard": (
        "cepheid.tools.build_leaderboard",
        "write the results as a web site with plots",
    ),
    "diff": ("cepheid.tools.diff_leaderboards", "show what changed between two leaderboards"),
    "data": ("cepheid.tools.prepare_data", "prepare, verify or export a dataset"),
    "new-submission": ("cepheid.tools.new_submission", "begin a submission with a task that runs"),
    "pack": (
        "cepheid.tools.pack_submission",
        "write the manifest of a submission: digests of all its files",
    ),
    "audit": ("cepheid.tools.audit_submission", "repeat one logged run and compare the two"),
    "round": (
        "cepheid.tools.manage_round",
        "lead a round: receipts to publication (docs/organisers.md)",
    ),
    "describe-system": ("cepheid.tools.describe_system", "describe this machine for a submission"),
    "new-benchmark": (
        "cepheid.tools.new_benchmark",
        "begin a benchmark with a small working example",
    ),
    "measure": (
        "cepheid.tools.measure.__main__",
        "measure speed, sweep, epochs, costs, formats or targets",
    ),
    "rehearse": (
        "cepheid.measure.rehearsal.rehearse",
        "play benchmarks on a device that pretends to be a GPU",
    ),
    "rcp": (
        "cepheid.measure.studies.convergence_points",
        "measure how many samples the reference needs, by batch size",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Dispatch to a sub-command; only its module is imported."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_describe_commands())
        return EXIT_FINE if arguments else EXIT_WRONG_USE
    if arguments[0] in ("--version", "version"):
        print(_describe_version())
        return EXIT_FINE
    return run_command("cepheid", "command", COMMANDS, arguments)


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

    from cepheid.rules import rounds

    return f"cepheid {read_version()}, Python {platform.python_version()}, round {rounds.CURRENT}"


def _describe_commands() -> str:
    return "\n".join(
        [
            "usage: cepheid COMMAND …        (cepheid COMMAND --help explains each)",
            "       cepheid --version",
            "",
            "Training benchmarks with rules, logs that can be checked, and results to trust.",
            "",
            *list_commands(COMMANDS),
            "",
            "first steps:",
            "  cepheid run galaxy_shape --scale mini --runs 1 --output results/first",
            "  cepheid summary results/first",
            "",
            "exit codes: 0 fine; 1 findings, or a run that missed its target; 2 wrong use",
        ]
    )


if __name__ == "__main__":
    console()
