"""`cepheid run`: run a benchmark and leave its run logs in a folder."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, NoReturn

from cepheid.reference.machine.placement import end_rank, find_placement, leave_quietly
from cepheid.rules import definition, extras
from cepheid.rules.errors import UserError
from cepheid.rules.host import end_on_interruption
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, EXIT_WRONG_USE, run_tool
from cepheid.tools.run.command_line import COMMAND, list_benchmarks, list_settings, read_request

if TYPE_CHECKING:
    from cepheid.reference.session.session import Session

EARLIER_RUNS, REACHED, MISSED = "CEPHEID_EARLIER_RUNS", "reached", "missed"
"""This variable is set for a process that continues the runs of an earlier one."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for. Exit code 1 if a run is not fine."""
    with _print_wrong_use_once():
        arguments = COMMAND.parse(argv)
        if arguments.list:
            if arguments.benchmark:
                print(list_settings(definition.load(arguments.benchmark, arguments.scale)))
            else:
                print(list_benchmarks())
            return EXIT_FINE
        request = read_request(arguments, is_continued=EARLIER_RUNS in os.environ)
        extras.require_for_runs(request.config.definition.extras, arguments.framework)

    with end_on_interruption(EXIT_FINDINGS):
        from cepheid.reference.session.session import start_session
        from cepheid.tools.run.live_check import SessionTerminal

    is_first = find_placement().rank == 0
    quiet = arguments.quiet and not arguments.dry_run
    is_trial = arguments.limit is not None
    terminal = SessionTerminal(is_first=is_first, quiet=quiet, is_trial=is_trial)
    with start_session(request, terminal) as session:
        if arguments.dry_run:
            from cepheid.tools.run.plan import plan

            planned, runs_left = plan(session, arguments.division), 0
            session.observer.tell(planned.describe())
            code = EXIT_FINDINGS if planned.refusals else EXIT_FINE
        else:
            end = session.make_runs()
            is_fine = end.all_fine and os.environ.get(EARLIER_RUNS, REACHED) == REACHED
            code, runs_left = EXIT_FINE if is_fine else EXIT_FINDINGS, end.runs_left
    if is_first and not arguments.dry_run and not runs_left:
        _print_end(session, is_fine=code == EXIT_FINE)
    if find_placement().world_size > 1:
        end_rank(code)
    if runs_left:
        _restart_process(runs_left, REACHED if code == EXIT_FINE else MISSED)
    return code


def _print_end(session: "Session", *, is_fine: bool) -> None:
    """Print what the last run means, and what comes next."""
    from cepheid.reference.session.result_folder import find_result_folder
    from cepheid.tools.run.ending import describe_end

    chosen, output = session.config.definition, session.request.output
    if chosen.data.get("is_subset"):
        if is_fine:
            print("--limit: data, devices and evaluation work; a run that counts needs all samples")
        return
    result = find_result_folder(output, session.config).path
    print(describe_end(chosen, result, output, chosen.runs.required), flush=True)


def _restart_process(runs: int, earlier: str) -> NoReturn:
    """Replace this process by a new one with the same command line, up to ``runs`` runs in all.

    Each run has a fresh process, so that nothing that an earlier run left in memory makes it
    faster.
    """
    os.environ[EARLIER_RUNS] = earlier
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--runs", str(runs)])


@contextmanager
def _print_wrong_use_once() -> Iterator[None]:
    """Let only the first rank of each machine print wrong use, which all ranks notice."""
    if find_placement().likely_local_rank == 0:
        yield
        return
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    except UserError:
        leave_quietly(EXIT_WRONG_USE)
    except SystemExit as error:  # argparse's
        leave_quietly(int(error.code or EXIT_FINE))


if __name__ == "__main__":
    run_tool(main)
