"""`cepheid run`: run a benchmark and leave its run logs in a folder."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.reference.machine.placement import end_rank, find_placement, leave_quietly
from cepheid.rules import definition, extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT, end_on_interruption
from cepheid.rules.layout import wrap
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, EXIT_WRONG_USE, run_tool
from cepheid.tools.run.command_line import COMMAND, list_benchmarks, list_settings, read_request
from cepheid.tools.run.costs import find_reference, has_accelerators

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

    chosen, output = session.config.definition, session.request.output
    if chosen.data.get("is_subset"):
        if is_fine:
            print("--limit: data, devices and evaluation work; a run that counts needs all samples")
        return
    result = find_result_folder(output, session.config).path
    print(_describe_end(chosen, result, output, chosen.runs.required), flush=True)


def _describe_end(chosen: Definition, result: Path, output: Path, required: int) -> str:
    """Return the lines for a result folder of which some runs are there; "" where none is."""
    paths = sorted(result.glob("result_*.txt"), key=lambda path: path.stat().st_mtime)
    if not paths:
        return ""
    log, here = runlog.read(paths[-1]), Path.cwd()
    page = ROOT / "benchmarks" / chosen.name / "README.md"
    lines = [
        f"{chosen.name}, {chosen.scale} scale: {len(paths)} of {required} runs",
        *_list_lines(chosen, log, has_accelerators(output, result.parent.name)),
        *_list_next(paths, output, required),
        f"about it: {page.relative_to(here) if page.is_relative_to(here) else page}",
    ]
    return wrap("\n".join(["", *lines]))


def _list_lines(chosen: Definition, log: RunLog, on_accelerators: bool) -> Iterator[str]:
    if log.seconds is None:
        return
    outcome = "reached" if log.converged else "missed"
    samples = f" and {log.samples_trained:,} samples" if log.samples_trained else ""
    yield f"this run: {log.seconds:,.1f} s{samples}; the targets were {outcome}"
    if log.quality_curve:
        metrics = log.quality_curve[-1].metrics
        for target in chosen.quality:
            value, unit = metrics.get(target.metric), chosen.units.get(target.metric, "")
            meaning = chosen.meanings.get(target.metric, "")
            if value is not None:
                said = f"{target.metric}: {value:.4g} {unit}".rstrip()
                yield f"{said}, target {target.target:g}" + (f" ({meaning})" if meaning else "")
    if reference := find_reference(chosen, on_accelerators=on_accelerators):
        ratio = log.seconds / reference.seconds
        yield (
            f"compare: our reference took {reference.seconds:,.1f} s on {reference.system}, the "
            f"median of {reference.runs} runs; this run took {ratio:.2f} times as long"
        )


def _list_next(paths: list[Path], output: Path, required: int) -> Iterator[str]:
    missing = required - len(paths)
    more = f"the same command with --runs +1 makes one run more, {missing} give a score"
    yield f"next: {more}" if missing > 0 else f"next: `cepheid summary {output}`"
    yield f"see: `cepheid leaderboard {output}` draws curves and pictures as pages"


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
